//! Lists requests that two recipients could read in two ways, or that hide another one. The tests over real connections
//! use this table, too.

/// Makes a request with these fields, and a body without chunks with a request behind it.
macro_rules! te {
    ($fields:literal) => {
        concat!(
            "POST / HTTP/1.1\r\nHost: h\r\n",
            $fields,
            "\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
        )
        .as_bytes()
    };
}

/// Makes a request with these fields, and a request behind it that could be the body of 39 bytes.
macro_rules! cl {
    ($fields:literal) => {
        concat!(
            "POST / HTTP/1.1\r\nHost: h\r\n",
            $fields,
            "\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\nX: y\r\n\r\n"
        )
        .as_bytes()
    };
}

/// Makes a chunked request with this body, and another request behind it.
macro_rules! chunk {
    ($body:literal) => {
        concat!(
            "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n",
            $body,
            "GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n"
        )
        .as_bytes()
    };
}

/// Rows of a name, the bytes, and the status of the one answer before the connection is closed.
pub const SMUGGLED: &[(&str, &[u8], u16)] = &[
    (
        "CL.TE",
        b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 34\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nX: y",
        400,
    ),
    (
        "TE.CL",
        b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n1e\r\nGET /smuggled HTTP/1.1\r\nX: y\r\n\r\n0\r\n\r\n",
        400,
    ),
    ("TE.TE: two lines", te!("Transfer-Encoding: chunked\r\nTransfer-Encoding: cow\r\n"), 400),
    ("TE.TE: two lines, turned", te!("Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n"), 400),
    ("TE.TE: chunked twice", te!("Transfer-Encoding: chunked, chunked\r\n"), 400),
    ("TE.TE: two lines of chunked", te!("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n"), 400),
    ("TE: xchunked", te!("Transfer-Encoding: xchunked\r\n"), 501),
    ("TE: a blank before the colon", te!("Transfer-Encoding : chunked\r\n"), 400),
    ("TE: a tab before the colon", te!("Transfer-Encoding\t: chunked\r\n"), 400),
    ("TE: a vertical tab", te!("Transfer-Encoding: \x0bchunked\r\n"), 400),
    ("TE: a form feed", te!("Transfer-Encoding: chunked\x0c\r\n"), 400),
    ("TE: NUL", te!("Transfer-Encoding: chunked\0\r\n"), 400),
    ("TE: a parameter", te!("Transfer-Encoding: chunked;q=1\r\n"), 400),
    ("TE: quotes", te!("Transfer-Encoding: \"chunked\"\r\n"), 400),
    ("TE: single quotes", te!("Transfer-Encoding: 'chunked'\r\n"), 501),
    ("TE: beyond ASCII", te!("Transfer-Encoding: chunked\u{a0}\r\n"), 400),
    ("TE: identity, chunked", te!("Transfer-Encoding: identity, chunked\r\n"), 501),
    ("TE: chunked, identity", te!("Transfer-Encoding: chunked, identity\r\n"), 400),
    ("TE: an empty element", te!("Transfer-Encoding: ,chunked\r\n"), 400),
    ("TE: no value", te!("Transfer-Encoding:\r\n"), 400),
    ("TE: folded", te!("Transfer-Encoding:\r\n chunked\r\n"), 400),
    ("TE: behind a folded line", te!("X: y\r\n Transfer-Encoding: chunked\r\n"), 400),
    ("TE: behind a bare LF", te!("X: y\nTransfer-Encoding: chunked\r\n"), 400),
    ("TE: behind a bare CR", te!("X: y\rTransfer-Encoding: chunked\r\n"), 400),
    ("TE: in the first line's LF", te!("\nTransfer-Encoding: chunked\r\n"), 400),
    ("TE: a blank before the name", te!(" Transfer-Encoding: chunked\r\n"), 400),
    ("TE: a colon too many", te!(": Transfer-Encoding: chunked\r\n"), 400),
    (
        "TE of HTTP/1.0",
        b"POST / HTTP/1.0\r\nHost: h\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n",
        400,
    ),
    ("CL: two of them", cl!("Content-Length: 0\r\nContent-Length: 39\r\n"), 400),
    ("CL: a list", cl!("Content-Length: 0, 39\r\n"), 400),
    ("CL: plus", cl!("Content-Length: +0\r\n"), 400),
    ("CL: minus", cl!("Content-Length: -1\r\n"), 400),
    ("CL: hexadecimal", cl!("Content-Length: 0x0\r\n"), 400),
    ("CL: wraps to 0", cl!("Content-Length: 18446744073709551616\r\n"), 400),
    ("CL: a blank inside", cl!("Content-Length: 0 39\r\n"), 400),
    ("CL: a blank before the colon", cl!("Content-Length : 0\r\n"), 400),
    ("CL: a letter behind", cl!("Content-Length: 0a\r\n"), 400),
    ("CL: empty", cl!("Content-Length:\r\n"), 400),
    ("CL: behind a bare LF", cl!("X: y\nContent-Length: 39\r\n"), 400),
    ("0.CL: an expectation that hides one", cl!("Content-Length: 39\r\nExpect: y 100-continue\r\n"), 417),
    ("a bare LF ends the head", b"GET / HTTP/1.1\r\nHost: h\r\n\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("Host twice", b"GET / HTTP/1.1\r\nHost: h\r\nHost: other\r\n\r\n", 400),
    ("Host with a blank before the colon", b"GET / HTTP/1.1\r\nHost: h\r\nHost : other\r\n\r\n", 400),
    ("two hosts in one", b"GET / HTTP/1.1\r\nHost: h, other\r\n\r\n", 400),
    ("no Host", b"GET / HTTP/1.1\r\n\r\n", 400),
    ("a blank in the target", b"GET / HTTP/1.1\r\nX: y HTTP/1.1\r\n\r\n", 400),
    ("a version behind the version", b"GET / HTTP/1.1 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    ("CONNECT", b"CONNECT other:80 HTTP/1.1\r\nHost: other:80\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n", 501),
    ("chunk: a sign", chunk!("+0\r\n\r\n"), 400),
    ("chunk: 0x", chunk!("0x0\r\n\r\n"), 400),
    ("chunk: wraps to 0", chunk!("10000000000000000\r\n\r\n"), 400),
    ("chunk: a bare LF behind the size", chunk!("0\n\r\n"), 400),
    ("chunk: a bare CR behind the size", chunk!("0\r\r\n\r\n"), 400),
    ("chunk: a blank behind the size", chunk!("0 \r\n\r\n"), 400),
    ("chunk: a blank before the size", chunk!(" 0\r\n\r\n"), 400),
    ("chunk: no size", chunk!("\r\n\r\n"), 400),
    ("chunk: a bare LF in an extension", chunk!("0;a\n\r\n"), 400),
    ("chunk: a bare CR in an extension", chunk!("0;a\rb\r\n\r\n"), 400),
    ("chunk: an extension without a name", chunk!("0;\r\n\r\n"), 400),
    ("chunk: data that is longer", chunk!("1\r\nab\r\n0\r\n\r\n"), 400),
    ("chunk: a bare LF behind the data", chunk!("1\r\na\n0\r\n\r\n"), 400),
    ("chunk: two bytes instead of CR LF", chunk!("1\r\naXX0\r\n\r\n"), 400),
    ("chunk: a bare LF as the end", chunk!("0\r\n\n"), 400),
    ("trailer: a bare LF", chunk!("0\r\nA: b\n\r\n"), 400),
    ("trailer: a length", chunk!("0\r\nContent-Length: 39\r\n\r\n"), 400),
    ("trailer: a coding", chunk!("0\r\nTransfer-Encoding: chunked\r\n\r\n"), 400),
    ("trailer: folded", chunk!("0\r\nA: b\r\n c\r\n\r\n"), 400),
    ("trailer: no colon", chunk!("0\r\nGET /smuggled HTTP/1.1\r\n\r\n"), 400),
];
