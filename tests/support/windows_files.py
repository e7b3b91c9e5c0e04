"""Program text that gives a process the file functions of Windows, as far as the modules under test use them.

There is no `os.uname`, no `O_NOFOLLOW` and no `pwrite`. A file that is opened without `O_BINARY` translates line ends.
"""

WINDOWS_FILES = """
import os
for name in ("uname", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY", "pwrite", "posix_fallocate"):
    delattr(os, name)
os.O_BINARY = 1 << 40
open_file, write_file, text_files = os.open, os.write, set()
def open_translating(path, flags, mode=0o777):
    file = open_file(path, flags & ~os.O_BINARY, mode)
    (text_files.discard if flags & os.O_BINARY else text_files.add)(file)
    return file
def write_translating(file, data):
    write_file(file, bytes(data).replace(b"\\n", b"\\r\\n") if file in text_files else data)
    return len(data)
os.open, os.write = open_translating, write_translating
"""
