//! Several reads at once, inside one task.
//!
//! The columns of a stripe are read together and all of them are waited for; where some may never come, for as many as
//! it takes. They borrow from the caller, so they cannot be spawned; they are few (a stripe has at most 255 columns), so
//! polling all that are unfinished at each wake-up costs less than a queue of wake-ups would.

use std::{future::poll_fn, task::Poll};

use crate::BoxFuture;

/// Runs `futures`, at most `limit` of them at a time, and returns their results in order.
pub(crate) async fn join_all<T>(futures: Vec<BoxFuture<'_, T>>, limit: usize) -> Vec<T> {
    let mut waiting: Vec<_> = futures.into_iter().map(Some).collect();
    let mut results: Vec<Option<T>> = waiting.iter().map(|_| None).collect();
    let mut first_unfinished = 0;
    poll_fn(|context| {
        let mut pending = 0;
        for index in first_unfinished..waiting.len() {
            if pending == limit.max(1) {
                break;
            }
            let Some(future) = &mut waiting[index] else { continue };
            match future.as_mut().poll(context) {
                Poll::Ready(value) => {
                    results[index] = Some(value);
                    waiting[index] = None;
                }
                Poll::Pending => pending += 1,
            }
        }
        while waiting.get(first_unfinished).is_some_and(Option::is_none) {
            first_unfinished += 1;
        }
        if pending > 0 { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    results.into_iter().flatten().collect()
}

/// The next of `futures` that has ended, which is not among them from then on: its number and its result. `None` if all
/// have.
pub(crate) async fn next_of<T>(futures: &mut [Option<BoxFuture<'_, T>>]) -> Option<(usize, T)> {
    poll_fn(|context| {
        let mut is_over = true;
        for (number, slot) in futures.iter_mut().enumerate() {
            let Some(future) = slot else { continue };
            if let Poll::Ready(value) = future.as_mut().poll(context) {
                *slot = None;
                return Poll::Ready(Some((number, value)));
            }
            is_over = false;
        }
        if is_over { Poll::Ready(None) } else { Poll::Pending }
    })
    .await
}

/// What the first of `futures` gives that gives anything; the others are given up then.
pub(crate) async fn first_of<T>(futures: Vec<BoxFuture<'_, Option<T>>>) -> Option<T> {
    let mut waiting: Vec<_> = futures.into_iter().map(Some).collect();
    while let Some((_, found)) = next_of(&mut waiting).await {
        if found.is_some() {
            return found;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[tokio::test]
    async fn results_in_order_and_never_more_than_the_limit_at_once() {
        let (running, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let futures: Vec<BoxFuture<'_, usize>> = (0..50usize)
            .map(|n| {
                let (running, most) = (&running, &most);
                Box::pin(async move {
                    most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                    for _ in 0..n % 4 {
                        tokio::task::yield_now().await;
                    }
                    running.fetch_sub(1, SeqCst);
                    n
                }) as BoxFuture<'_, usize>
            })
            .collect();
        assert_eq!(join_all(futures, 7).await, (0..50).collect::<Vec<_>>());
        assert!((2..=7).contains(&most.load(SeqCst)));
        assert_eq!(join_all(Vec::<BoxFuture<'_, ()>>::new(), 7).await, []);
    }

    #[tokio::test]
    async fn the_first_that_gives_anything_is_taken_though_others_never_end() {
        let never = || Box::pin(std::future::pending::<Option<u32>>()) as BoxFuture<'_, Option<u32>>;
        let gives = |what: Option<u32>| {
            Box::pin(async move {
                tokio::task::yield_now().await;
                what
            }) as BoxFuture<'_, Option<u32>>
        };
        assert_eq!(first_of(vec![never(), gives(None), gives(Some(3)), never()]).await, Some(3));
        assert_eq!(first_of(vec![gives(None), gives(None)]).await, None);
        assert_eq!(first_of(Vec::<BoxFuture<'_, Option<u32>>>::new()).await, None);
    }
}
