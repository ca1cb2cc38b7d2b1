//! Writes lines to standard error as far as that takes them at once: a reader that stands still stops no connection.

use std::{
    io::{self, Write},
    os::fd::AsFd,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

use super::limit::limit;

/// Number of bytes that a pipe takes at once if it takes any (`PIPE_BUF`); a socket takes more.
const PIECE: usize = 4_096;

/// True if the last line was cut off.
static CUT: AtomicBool = AtomicBool::new(false);

/// Standard error, of which each line is counted that it does not take.
#[derive(Debug)]
pub(super) struct StandardError;

impl Write for StandardError {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut to = io::stderr().lock();
        // Hide errors from the formatter: it would print them to the same file, and panic when that fails, too.
        if !write_line(&mut to, line, &CUT).unwrap_or(false) {
            limit().note_lost();
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        // Each line was written as a whole: there is no buffer.
        Ok(())
    }
}

/// Writes a line in pieces. Returns false if it was left out, or cut off, because the file takes no more now. `cut`: the last line
/// was cut off.
fn write_line(to: &mut (impl Write + AsFd), line: &[u8], cut: &AtomicBool) -> io::Result<bool> {
    if cut.load(Ordering::Relaxed) {
        if !takes_more(&*to)? {
            return Ok(false);
        }
        to.write_all(b"\n")?;
        cut.store(false, Ordering::Relaxed);
    }
    for (n, piece) in line.chunks(PIECE).enumerate() {
        if !takes_more(&*to)? {
            cut.store(n > 0, Ordering::Relaxed);
            return Ok(false);
        }
        // A part of the piece may have been written.
        to.write_all(piece)
            .inspect_err(|_| cut.store(true, Ordering::Relaxed))?;
    }
    Ok(true)
}

/// Returns true if a write of a piece would not wait.
fn takes_more(to: impl AsFd) -> io::Result<bool> {
    let mut polled = [PollFd::new(&to, PollFlags::OUT)];
    loop {
        match poll(&mut polled, Some(&Timespec::default())) {
            Err(Errno::INTR) => {}
            // An error of the file is told by the write.
            ready => return Ok(ready? > 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{PipeReader, PipeWriter, Read, pipe};

    use super::*;

    /// Returns a pipe that takes no more, and the number of bytes in it.
    fn full() -> (PipeReader, PipeWriter, usize) {
        let (reader, mut writer) = pipe().unwrap();
        let mut bytes = 0;
        while takes_more(&writer).unwrap() {
            writer.write_all(&[b'x'; PIECE]).unwrap();
            bytes += PIECE;
        }
        (reader, writer, bytes)
    }

    /// Writes another line, and returns all that is in the pipe then.
    fn with_another_line(mut reader: PipeReader, mut writer: PipeWriter, cut: &AtomicBool) -> String {
        assert!(write_line(&mut writer, b"line\n", cut).unwrap());
        drop(writer);
        let mut rest = String::new();
        reader.read_to_string(&mut rest).unwrap();
        rest
    }

    #[test]
    fn a_line_that_a_full_pipe_does_not_take_is_left_out() {
        let (mut reader, mut writer, bytes) = full();
        let cut = AtomicBool::new(false);
        assert!(!write_line(&mut writer, b"lost\n", &cut).unwrap());
        reader.read_exact(&mut vec![0; bytes]).unwrap();
        assert_eq!(with_another_line(reader, writer, &cut), "line\n");
    }

    #[test]
    fn a_line_behind_one_that_was_cut_off_stands_alone() {
        let (mut reader, mut writer, bytes) = full();
        let cut = AtomicBool::new(false);
        reader.read_exact(&mut [0; PIECE]).unwrap();
        let long = [b'y'; 2 * PIECE];
        assert!(!write_line(&mut writer, &long, &cut).unwrap(), "a piece fits");
        reader.read_exact(&mut vec![0; bytes]).unwrap();
        assert_eq!(with_another_line(reader, writer, &cut), "\nline\n");
    }
}
