"""The text of a cost expression: how large it may be, and how a part of it is refused."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from saformer.criteria.language import MAX_CHARACTERS, MAX_NODES


@dataclass
class Source:
    """The text, what has been found in it, and how to refuse a part of it."""

    text: str
    reads: set[str] = field(default_factory=set)
    """parts and columns named so far"""

    def tree(self) -> ast.expr:
        """The text parsed, if it is not too large; what its nodes may be is not looked at."""
        if len(self.text) > MAX_CHARACTERS:
            raise self.refusal(
                f"it has {len(self.text)} characters, at most {MAX_CHARACTERS} are allowed"
            )
        if not self.text.isprintable():
            raise self.refusal("it holds line breaks or characters that cannot be seen")
        try:
            tree = ast.parse(self.text, mode="eval").body
        except SyntaxError as error:
            raise self.refusal(
                f"{error.msg}, at character {error.offset or len(self.text) + 1}"
            ) from None
        except (ValueError, OverflowError, MemoryError) as error:
            raise self.refusal(f"it cannot be parsed ({error})") from None
        num_nodes = sum(isinstance(node, ast.expr) for node in ast.walk(tree))
        if num_nodes > MAX_NODES:
            raise self.refusal(f"it has {num_nodes} parts, at most {MAX_NODES} are allowed")
        return tree

    def part(self, node: ast.expr) -> str:
        """A node as it was written."""
        return ast.get_source_segment(self.text, node) or ast.unparse(node)

    def refusal(self, problem: str, node: ast.expr | None = None) -> ValueError:
        """What is wrong, where, and what could be written instead."""
        where = ""
        if node is not None:
            character = len(self.text.encode()[: node.col_offset].decode()) + 1
            where = f" {_short(self.part(node))} at character {character}:"
        return ValueError(
            f"cost criterion {_short(self.text)} is not understood:{where} {problem}. Write "
            "torque, torque[0], energy, "
            'module:function, or an expression such as "abs(action).sum() + 0.1*(speed > 2)" over action, state, '
            "next_state, reward and the names of columns"
        )


def _short(text: str) -> str:
    return repr(text if len(text) <= 100 else text[:97] + "...")
