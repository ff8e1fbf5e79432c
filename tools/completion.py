"""``tidelog completion``: the script by which a shell completes command lines of ``tidelog``."""

from __future__ import annotations

import click

from .shell.commands import VARIABLE, ToolCommand
from .shell.completion import CLASSES


@click.command(cls=ToolCommand)
@click.argument("shell", type=click.Choice(list(CLASSES)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the script that completes commands, options, maps, codecs and partitions.

    \b
    bash  eval "$(tidelog completion bash)"       in ~/.bashrc
    zsh   eval "$(tidelog completion zsh)"        in ~/.zshrc, behind compinit
    fish  tidelog completion fish | source        in ~/.config/fish/config.fish
    """
    root = ctx.find_root().command
    click.echo(CLASSES[shell](root, {}, "tidelog", VARIABLE).source(), nl=False)
