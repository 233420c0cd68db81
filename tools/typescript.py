"""Generates the TypeScript client from the OpenAPI document: `python -m tools.typescript DIRECTORY`.

Another language needs its own `type_of` and something that prints operations; the rest is in the document.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import shoal
from shoal.live.service.app import endpoints
from shoal.live.service.openapi import document

SOURCE = Path(__file__).parents[1] / "clients" / "typescript"
WRITTEN = ("client.js", "package.json", "README.md")
"""Files that are written by hand."""
HEAD = "// Generated from the OpenAPI document by tools/typescript.py.\n"
CLASSES = """
export class ShoalError extends Error {
  readonly problem: Problem;
  readonly status: number;
  /** The end of the problem's type, such as "conflict". */
  readonly kind: string;
}
export class UnavailableError extends ShoalError {}
export interface Options {
  /** Milliseconds for the call with all its attempts. */
  deadline?: number;
  signal?: AbortSignal;
}
export interface Settings {
  key?: string;
  deadline?: number;
  attempt?: number;
  fetch?: typeof fetch;
}
"""


def generate(target: Path) -> None:
    """Write the whole package into a directory."""
    described = json.loads(json.dumps(document(endpoints())))
    target.mkdir(parents=True, exist_ok=True)
    if target != SOURCE:
        for name in WRITTEN:
            shutil.copy(SOURCE / name, target / name)
    package = json.loads((target / "package.json").read_text()) | {"version": shoal.__version__}
    (target / "package.json").write_text(json.dumps(package, indent=2) + "\n")
    found = [
        (operation, method, path)
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    ]
    table = {camel(one["operationId"]): _request(one, method, path) for one, method, path in found}
    (target / "operations.js").write_text(f"{HEAD}export const operations = {json.dumps(table, indent=2)};\n")
    types = [_declared(name, schema) for name, schema in described["components"]["schemas"].items()]
    methods = "\n".join(_method(one) for one, _, _ in found)
    client = f"export class Client {{\n  constructor(url: string, settings?: Settings);\n{methods}\n}}\n"
    (target / "index.d.ts").write_text(HEAD + "\n".join(types) + CLASSES + client)


def camel(name: str) -> str:
    """A name in JavaScript's style."""
    return re.sub(r"_(\w)", lambda found: found[1].upper(), name)


def type_of(schema: dict[str, Any]) -> str:
    """The TypeScript type of a JSON schema."""
    match schema:
        case {"$ref": ref}:
            return str(ref).rsplit("/", 1)[1]
        case {"enum": values}:
            return " | ".join(map(json.dumps, values))
        case {"const": value}:
            return json.dumps(value)
        case {"anyOf": several}:
            return " | ".join(dict.fromkeys(map(type_of, several)))
        case {"type": "array", "items": dict(items)}:
            return f"({type_of(items)})[]"
        case {"type": "object", "properties": properties}:
            required = schema.get("required", [])
            return "{ " + "; ".join(_field(name, one, required) for name, one in properties.items()) + " }"
        case {"type": "object", "additionalProperties": dict(values)} if values:
            return f"Record<string, {type_of(values)}>"
        case {"type": "object"}:
            return "Record<string, unknown>"
        case {"type": "integer"}:
            return "number"
        case {"type": "string" | "number" | "boolean" | "null" as plain}:
            return str(plain)
    return "unknown"


def _field(name: str, schema: dict[str, Any], required: list[str]) -> str:
    return f"{name}{'' if name in required else '?'}: {type_of(schema)}"


def _declared(name: str, schema: dict[str, Any]) -> str:
    said = " ".join(str(schema.get("description", "")).split())
    return f"/** {said} */\nexport type {name} = {type_of(schema)};"


def _request(operation: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    query = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
    content = operation["responses"].get("200", {}).get("content", {"json": {}})
    return {
        "method": method.upper(),
        "path": path,
        "query": query,
        "text": not any("json" in one for one in content),
    }


def _method(operation: dict[str, Any]) -> str:
    """The signature of an operation's method."""
    fields = [
        f"{one['name']}{'' if one.get('required') else '?'}: {type_of(one['schema'])}"
        for one in operation["parameters"]
        if one["in"] != "header"
    ]
    name = camel(operation["operationId"])
    if "requestBody" in operation:
        fields.append(f"body: {_content(operation['requestBody'])}")
    if name == "decide":
        fields.append("fallback?: string | number")
    answers = [one for status, one in operation["responses"].items() if status in ("200", "201")]
    answer = " | ".join(dict.fromkeys(map(_content, answers))) or "undefined"
    optional = "" if any("?:" not in field for field in fields) else "?"
    given = f"options{optional}: {{ {'; '.join(fields)} }} & Options" if fields else "options?: Options"
    return f"  /** {operation['summary'].splitlines()[0]} */\n  {name}({given}): Promise<{answer}>;"


def _content(described: dict[str, Any]) -> str:
    return next((type_of(one["schema"]) for one in described.get("content", {}).values()), "undefined")


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
