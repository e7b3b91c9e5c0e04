"""The mulligan command, and `python -m mulligan`."""


def main() -> None:
    """Run the command. If a dependency of mulligan is broken, the server behind its proxy starts nevertheless."""
    try:
        from mulligan.cli import main as run_command
    except Exception as error:
        from mulligan.proxy.plain_server import run_server_of_command

        run_server_of_command(error)
        raise
    run_command()


if __name__ == "__main__":
    main()
