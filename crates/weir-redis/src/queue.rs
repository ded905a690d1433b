//! The way of requests from the worker's thread to the I/O thread.
//!
//! Several are pushed and the thread woken once: to wake one that sleeps is a system
//! call, and it would set off with the first. Nothing here locks: the worker waits for
//! no thread.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::task::Poll;

use futures_util::task::AtomicWaker;

use crate::rule::Ask;

/// A queue that takes up to `capacity` requests.
pub fn queue(capacity: usize) -> (Queue, Inbox) {
    let (sender, receiver) = channel();
    let shared = Arc::new(Shared {
        len: AtomicUsize::new(0),
        capacity,
        waker: AtomicWaker::new(),
        inbox_is_gone: AtomicBool::new(false),
        queue_is_gone: AtomicBool::new(false),
    });
    (Queue { sender, shared: Arc::clone(&shared) }, Inbox { receiver, shared })
}

#[derive(Debug)]
struct Shared {
    /// What was pushed and not taken. Only the queue makes it more.
    len: AtomicUsize,
    capacity: usize,
    waker: AtomicWaker,
    inbox_is_gone: AtomicBool,
    queue_is_gone: AtomicBool,
}

/// The worker's end. Dropping it lets the other end know.
#[derive(Debug)]
pub struct Queue {
    sender: Sender<Ask>,
    shared: Arc<Shared>,
}

/// The I/O thread's end.
#[derive(Debug)]
pub struct Inbox {
    receiver: Receiver<Ask>,
    shared: Arc<Shared>,
}

/// How many requests are in a queue, for whoever tells of it.
#[derive(Clone, Debug)]
pub struct Gauge(Arc<Shared>);

impl Queue {
    /// How many more it takes.
    pub fn room(&self) -> usize {
        self.shared.capacity.saturating_sub(self.len())
    }

    /// How many are in it.
    pub fn len(&self) -> usize {
        self.shared.len.load(Relaxed)
    }

    /// Whether none are in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether nobody takes any more.
    pub fn is_closed(&self) -> bool {
        self.shared.inbox_is_gone.load(Acquire)
    }

    /// Puts a request in; gives it back where there is no room, or nobody takes any.
    /// Whoever takes them knows at the next [`wake`](Self::wake).
    ///
    /// # Errors
    ///
    /// The request.
    pub fn push(&self, ask: Ask) -> Result<(), Ask> {
        if self.room() == 0 || self.is_closed() {
            return Err(ask);
        }
        self.shared.len.fetch_add(1, Relaxed);
        self.sender.send(ask).map_err(|unsent| {
            self.shared.len.fetch_sub(1, Relaxed);
            unsent.0
        })
    }

    /// Wakes whoever takes them, if it sleeps.
    pub fn wake(&self) {
        self.shared.waker.wake();
    }

    /// Tells how many are in it.
    pub fn gauge(&self) -> Gauge {
        Gauge(Arc::clone(&self.shared))
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.queue_is_gone.store(true, Release);
        self.shared.waker.wake();
    }
}

impl Inbox {
    /// Appends up to `most` requests, as soon as there are any; returns how many, and
    /// 0 where there are none and will be none. What is dropped before it is done has
    /// taken nothing.
    pub async fn take(&mut self, asks: &mut Vec<Ask>, most: usize) -> usize {
        let Self { receiver, shared } = self;
        poll_fn(move |context| {
            for registered in [false, true] {
                // In this order: what is pushed before the end is taken.
                let is_last = shared.queue_is_gone.load(Acquire);
                let before = asks.len();
                asks.extend(receiver.try_iter().take(most));
                let taken = asks.len() - before;
                shared.len.fetch_sub(taken, Relaxed);
                if taken > 0 || is_last {
                    return Poll::Ready(taken);
                }
                if !registered {
                    shared.waker.register(context.waker());
                }
            }
            Poll::Pending
        })
        .await
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.shared.inbox_is_gone.store(true, Release);
    }
}

impl Gauge {
    /// How many are in it.
    pub fn len(&self) -> usize {
        self.0.len.load(Relaxed)
    }

    /// Whether none are in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::testing::{asks, run};

    fn tickets(asks: &[Ask]) -> Vec<u64> {
        asks.iter().map(|ask| ask.ticket).collect()
    }

    #[test]
    fn it_takes_as_many_as_it_may_and_gives_them_in_their_order() {
        run(async {
            let (queue, mut inbox) = queue(3);
            let mut refused = Vec::new();
            for ask in asks(5) {
                refused.extend(queue.push(ask).err());
            }
            assert_eq!((tickets(&refused), queue.len(), queue.room()), (vec![4, 5], 3, 0));
            let mut taken = Vec::new();
            assert_eq!(inbox.take(&mut taken, 2).await, 2);
            assert_eq!((tickets(&taken), queue.gauge().len()), (vec![1, 2], 1));
            queue.push(refused.remove(0)).expect("room again");
            assert_eq!(inbox.take(&mut taken, 128).await, 2);
            assert_eq!((tickets(&taken), queue.room()), (vec![1, 2, 3, 4], 3));
        });
    }

    #[test]
    fn whoever_waits_is_woken_from_another_thread() {
        for _ in 0..200 {
            let (queue, mut inbox) = queue(64);
            let pushing = std::thread::spawn(move || {
                for ask in asks(20) {
                    queue.push(ask).expect("room");
                    queue.wake();
                }
            });
            run(async {
                let mut taken = Vec::new();
                let all = async { while inbox.take(&mut taken, 3).await > 0 {} };
                tokio::time::timeout(Duration::from_secs(20), all).await.expect("woken");
                assert_eq!(tickets(&taken), (1..=20).collect::<Vec<_>>());
            });
            pushing.join().expect("pushed");
        }
    }

    #[test]
    fn what_was_in_it_at_the_end_is_taken_and_nothing_is_put_in_for_nobody() {
        run(async {
            let (sending, mut inbox) = queue(8);
            asks(2).into_iter().for_each(|ask| sending.push(ask).expect("room"));
            drop(sending);
            let mut taken = Vec::new();
            assert_eq!(inbox.take(&mut taken, 8).await, 2);
            assert_eq!(inbox.take(&mut taken, 8).await, 0);

            let (sending, inbox) = queue(8);
            assert!(!sending.is_closed());
            drop(inbox);
            assert!(sending.is_closed() && sending.is_empty());
            assert!(sending.push(asks(1).remove(0)).is_err());
        });
    }
}
