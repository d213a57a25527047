"""The subcommands of `koord`, one module or folder per noun."""
