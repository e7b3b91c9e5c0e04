"""Addresses that servers of this project listen on."""

from __future__ import annotations

import errno
import ipaddress
import socket

from mulligan.core.failure import SettingsError


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def bind_socket(host: str, port: int, option: str) -> socket.socket:
    """Open a listening socket, or raise `SettingsError`: with another port for the option, if the port is at fault."""
    bound_socket = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound_socket = socket.socket(family, kind, protocol)
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound_socket.bind(address)
        bound_socket.listen(512)
    except OSError as error:
        if bound_socket is not None:
            bound_socket.close()
        other_port = port + 1 if port and port < 65535 else 0
        advice = f"Try {option} {other_port}"
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            advice = "Use an address of this machine, or 0.0.0.0 for all of them."
        message = f"Cannot listen on {host}:{port} ({error.strerror or error}). {advice}"
        raise SettingsError(message) from None
    return bound_socket
