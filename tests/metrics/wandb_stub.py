"""A server on the loopback that answers `wandb sync` as far as a run needs it, and keeps what it was sent."""

import http.server
import json
import threading


class Stub:
    def __init__(self):
        self.runs = {}      # id: what was sent of the run
        self.unknown = []   # operations without an answer
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.handle_error = lambda *_: None  # connections that the client drops
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self):
        self._server.shutdown()

    def run(self, name):
        return self.runs.setdefault(
            name, {"config": {}, "params": {}, "rows": {}, "summary": {}, "files": {}, "exit": None, "lines": []})

    def answer(self, operation, variables):
        project = {"id": "p", "name": variables.get("project") or "project", "entity": {"id": "e", "name": "user"}}
        if operation == "UpsertBucket":
            run = self.run(variables["name"])
            if variables.get("config"):
                run["config"] = json.loads(variables["config"])
            if variables.get("displayName"):
                run["params"] = variables
            return {"upsertBucket": {"inserted": not run["rows"], "bucket": {
                "id": variables["name"], "name": variables["name"], "displayName": variables.get("displayName"),
                "description": None, "config": "{}", "sweepName": None, "historyLineCount": len(run["lines"]),
                "project": project}}}
        if operation == "CreateRunFiles":
            return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": [
                {"name": name, "uploadUrl": f"{self.url}/upload/{variables['run']}/{name}"}
                for name in variables["files"]]}}
        if operation == "Viewer":
            return {"viewer": {"id": "v", "entity": "user", "username": "user", "email": "", "flags": "{}",
                               "teams": {"edges": []}}, "serverInfo": None}
        if operation in ("ServerFeaturesQuery", "ServerFeatures"):
            return {"serverInfo": {"features": []}}
        self.unknown.append((operation, variables))
        return {}

    def stream(self, name, request):
        run = self.run(name)
        files = request.get("files") or {}
        history = files.get("wandb-history.jsonl") or {}
        for line in history.get("content", []):
            row = json.loads(line)
            run["lines"].append(row)
            run["rows"][row["_step"]] = row  # W&B identifies rows by their step
        for line in (files.get("wandb-summary.json") or {}).get("content", []):
            run["summary"].update(json.loads(line))
        if request.get("complete"):
            run["exit"] = request.get("exitcode")

    def _handler(stub):
        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def reply(self, data):
                body = json.dumps(data).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def body(self):
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip
                    data = gzip.decompress(data)
                return data

            def do_POST(self):
                data = json.loads(self.body() or b"{}")
                if self.path.startswith("/graphql"):
                    operation = data.get("operationName") or data.get("query", "").split("(")[0].split("{")[0].split()[-1]
                    self.reply({"data": stub.answer(operation, data.get("variables") or {})})
                elif self.path.endswith("/file_stream"):
                    stub.stream(self.path.split("/")[-2], data)
                    self.reply({})
                else:
                    stub.unknown.append((self.path, data))
                    self.reply({})

            def do_PUT(self):
                _, _, run, name = self.path.split("/", 3)
                stub.run(run)["files"][name] = self.body()
                self.reply({})

            def do_GET(self):
                stub.unknown.append((self.path, None))
                self.reply({})

            def log_message(self, *_):
                pass

        return Handler
