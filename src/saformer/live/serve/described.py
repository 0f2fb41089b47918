"""What is served, for programs (OpenAPI) and for people (a page without scripts)."""

from html import escape
from typing import Any

from saformer.live.serve.messages import STATUS, ActRequest

ANSWER = {
    "session": ("string", "As in the request."),
    "step": ("integer", "As in the request."),
    "action": ("array", "What to execute. Left out when an episode has ended."),
    "forecast": ("array", "What the rest of the episode is forecast to cost by the rule, for each "
                 "constraint; null where the policy forecasts nothing."),
    "why": ("object", "Candidates, how many were safe, which was chosen, rounds of proposals, "
            "whether the fallback decided, whether a shield made the action cheaper, and the "
            "return that was asked for."),
    "limit": ("array", "What the episode may cost."),
    "spent": ("array", "What it has cost so far."),
}  # fmt: skip
PATHS = {
    "/v1/act": ("post", "Decide one step, or end an episode"),
    "/v1/sessions/{name}": ("get", "Where a session stands: its latest answer, and `ended`"),
    "/v1/policy": ("get", "What is served: sizes, constraints, the data's percentiles of cost"),
    "/healthz": ("get", "200 while requests are answered, 503 once the server stops"),
    "/metrics": ("get", "Counts and times, for Prometheus"),
}


def openapi(described: dict[str, Any]) -> dict[str, Any]:
    """The schema of the HTTP half."""
    answer = {name: {"type": kind, "description": text} for name, (kind, text) in ANSWER.items()}
    error = {"type": "object", "properties": {"error": {"type": "string"}}}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"saformer serve: {described['policy']}", "version": "1"},
        "paths": {path: {verb: _operation(path, text)} for path, (verb, text) in PATHS.items()},
        "components": {
            "schemas": {
                "Request": ActRequest.model_json_schema(),
                "Answer": {"type": "object", "properties": answer},
                "Refusal": error,
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def docs_page(described: dict[str, Any]) -> str:
    """The same for people."""
    requests = {name: field.description or "" for name, field in ActRequest.model_fields.items()}
    answers = {name: text for name, (_, text) in ANSWER.items()}
    paths = {f"{verb.upper()} {path}": text for path, (verb, text) in PATHS.items()}
    facts = {name: str(value) for name, value in described.items()}
    sections = {
        "Policy": facts,
        "POST /v1/act, and each frame of the websocket": requests,
        "Answer": answers,
        "Also here": paths,
        "Refusals": {str(status): reason for reason, status in STATUS.items()},
    }
    body = "".join(f"<h2>{escape(title)}</h2>{_table(rows)}" for title, rows in sections.items())
    return _PAGE.format(title=escape(str(described["policy"])), body=body)


def _operation(path: str, text: str) -> dict[str, Any]:
    def content(name: str) -> dict[str, Any]:
        schema = {"$ref": f"#/components/schemas/{name}"}
        return {"content": {"application/json": {"schema": schema}}}

    refused = {"description": "A refusal of one line", **content("Refusal")}
    operation: dict[str, Any] = {"summary": text, "responses": {"200": {"description": "OK"}}}
    operation["responses"]["default"] = refused
    if "{name}" in path:
        name = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [name]
    if path == "/v1/act":
        operation["requestBody"] = {"required": True, **content("Request")}
        operation["responses"]["200"] |= content("Answer")
    return operation


def _table(rows: dict[str, str]) -> str:
    cells = (
        f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>" for name, text in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"


_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>saformer serve: {title}</title>
<style>:root{{color-scheme:light dark}}
body{{font:16px/1.5 system-ui;max-width:50rem;margin:2rem auto;padding:0 1rem}}
th{{text-align:left;vertical-align:top;padding-right:1.5rem;font-family:monospace}}</style>
<h1>saformer serve: {title}</h1>
<p>Also as <a href="/openapi.json">OpenAPI</a>. <code>saformer.client</code> speaks it.</p>
{body}</html>"""
