//! A byte stream between two tasks, for tests in virtual time: [`pipe`] makes both ends.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::stream::Transport;

#[derive(Default)]
struct Half {
    bytes: VecDeque<u8>,
    closed: bool,
    wakers: Vec<Waker>,
}

impl Half {
    fn wake(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
    }
}

/// One end: reads what the other writes, at most `room` bytes ahead and `most` bytes at a time.
pub(super) struct Pipe {
    from: Rc<RefCell<Half>>,
    to: Rc<RefCell<Half>>,
    room: usize,
    most: usize,
}

/// Two ends.
pub(super) fn pipe(room: usize, most: usize) -> (Pipe, Pipe) {
    let (a, b) = (
        Rc::<RefCell<Half>>::default(),
        Rc::<RefCell<Half>>::default(),
    );
    let near = Pipe {
        from: a.clone(),
        to: b.clone(),
        room,
        most,
    };
    (
        near,
        Pipe {
            from: b,
            to: a,
            room,
            most,
        },
    )
}

impl Pipe {
    async fn write(&self, data: &[u8]) -> io::Result<()> {
        let mut done = 0;
        std::future::poll_fn(|cx| {
            let mut half = self.to.borrow_mut();
            if half.closed {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            }
            let take = (self.room - half.bytes.len()).min(data.len() - done);
            half.bytes.extend(&data[done..done + take]);
            done += take;
            half.wake();
            if done == data.len() {
                return Poll::Ready(Ok(()));
            }
            half.wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

impl Transport for Pipe {
    async fn read(&self, buf: &mut [u8]) -> io::Result<usize> {
        std::future::poll_fn(|cx| {
            let mut half = self.from.borrow_mut();
            let take = half.bytes.len().min(buf.len()).min(self.most);
            if take == 0 && !half.closed {
                half.wakers.push(cx.waker().clone());
                return Poll::Pending;
            }
            for (to, from) in buf.iter_mut().zip(half.bytes.drain(..take)) {
                *to = from;
            }
            half.wake();
            Poll::Ready(Ok(take))
        })
        .await
    }

    async fn write_all(&self, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
        for part in parts {
            self.write(part).await?;
        }
        Ok(())
    }

    fn close(&self) {
        for half in [&self.from, &self.to] {
            let mut half = half.borrow_mut();
            half.closed = true;
            half.wake();
        }
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.close();
    }
}
