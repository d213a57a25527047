"""`python -m koord` is the same as the `koord` command."""

from koord.cli.main import run

if __name__ == "__main__":
    run()
