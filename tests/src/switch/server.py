"""A threading server for the tests of the switch: ADDRESS PORT VERSION ROOT.

Files of ROOT; PUT and POST answer the SHA-256 of the body; /git/ is `git http-backend` on ROOT; /websocket echoes. It is strict: a request
that a switch must not send on gets 400, and a line in the log that begins with STRICT.
"""

import base64
import hashlib
import http.server
import os
import socket
import socketserver
import subprocess
import sys

ADDRESS, PORT, VERSION, ROOT = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]


class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = VERSION
    timeout = 30

    def __init__(self, *words):
        super().__init__(*words, directory=ROOT)

    def parse_request(self):
        if not super().parse_request():
            return False
        for what, is_wrong in {
            "no one Host": self.request_version == "HTTP/1.1" and len(self.headers.get_all("Host", [])) != 1,
            "two lengths": "Content-Length" in self.headers and "Transfer-Encoding" in self.headers,
            "several lengths": len(self.headers.get_all("Content-Length", [])) > 1,
            "a hop's field": any(name in self.headers for name in ("Keep-Alive", "Proxy-Connection")),
            "a strange target": not (self.path.startswith("/") or self.path == "*"),
        }.items():
            if is_wrong:
                print("STRICT", what, self.requestline, flush=True)
                self.send_error(400, what)
                return False
        return True

    def log_message(self, *_):
        pass

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = bytearray()
        while size := int(self.rfile.readline().split(b";")[0], 16):
            body += self.rfile.read(size)
            if self.rfile.read(2) != b"\r\n":
                print("STRICT a chunk without an end", flush=True)
        while self.rfile.readline() != b"\r\n":
            pass
        return bytes(body)

    def answer(self, body, kind="text/plain"):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def websocket(self):
        """Echoes messages, whole frames each (RFC 6455)."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while head := self.rfile.read(2):
            length = head[1] & 127
            if length > 125:
                length = int.from_bytes(self.rfile.read(2 if length == 126 else 8), "big")
            mask = self.rfile.read(4)
            data = self.rfile.read(length)
            data = bytes(b ^ mask[i % 4] for i, b in enumerate(data))
            self.wfile.write(bytes([head[0], 127]) + len(data).to_bytes(8, "big") + data)

    def do_GET(self):
        if self.path.startswith("/git/"):
            self.git(b"")
        elif self.path == "/websocket":
            self.websocket()
        else:
            super().do_GET()

    def do_POST(self):
        body = self.body()
        if self.path.startswith("/git/"):
            self.git(body)
        else:
            self.answer(hashlib.sha256(body).hexdigest().encode())

    do_PUT = do_POST

    def git(self, body):
        """What `git http-backend` says, as CGI has it (RFC 3875); without a length, so in chunks."""
        path, _, query = self.path[len("/git"):].partition("?")
        environment = os.environ | {
            "GIT_PROJECT_ROOT": ROOT,
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": "user",
            "REMOTE_ADDR": self.client_address[0],
            "SERVER_PROTOCOL": self.request_version,
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=environment, stdout=subprocess.PIPE)
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        fields = [line.split(b": ", 1) for line in head.split(b"\r\n") if line]
        status = next((int(value[:3]) for name, value in fields if name == b"Status"), 200)
        self.send_response(status)
        for name, value in fields:
            if name != b"Status":
                self.send_header(name.decode(), value.decode())
        if self.protocol_version == "HTTP/1.1":
            self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if self.protocol_version == "HTTP/1.1":
            for start in range(0, len(body), 5000):
                piece = body[start:start + 5000]
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            self.wfile.write(b"0\r\n\r\n")
        else:
            self.wfile.write(body)


class Server(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6 if ":" in ADDRESS else socket.AF_INET
    request_queue_size = 128

    def server_bind(self):
        # The library's own asks for the name of the address: there is no name server here, and it waits for seconds.
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = ADDRESS, PORT


Server((ADDRESS, PORT), Handler).serve_forever()
