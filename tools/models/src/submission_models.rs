//! Models of the submission list: no request is lost, doubled, reordered, leaked or used by two threads.

use loom::future::block_on;
use loom::thread;

use crate::submission::{Closed, Receiver, SubmitError, submission_list};
use crate::sync::{Arc, check};

/// Collects and takes until `count` requests have come; each is answered with itself.
fn serve(receiver: &mut Receiver<u32, u32>, count: usize) -> Vec<u32> {
    let mut seen = Vec::new();
    while seen.len() < count {
        receiver.collect();
        while let Some((id, request)) = receiver.take() {
            seen.push(request);
            receiver.complete(id, request);
        }
        thread::yield_now();
    }
    seen
}

#[test]
fn requests_of_each_thread_arrive_once_and_in_order() {
    check(|| {
        let (submitter, mut receiver) = submission_list::<u32, u32>(4);
        let other = submitter.clone();
        let thread = thread::spawn(move || {
            drop(other.submit(1).unwrap());
            drop(other.submit(2).unwrap());
        });
        drop(submitter.submit(10).unwrap());
        let seen = serve(&mut receiver, 3);
        thread.join().unwrap();
        let place = |request| seen.iter().position(|&seen| seen == request).unwrap();
        assert!(place(1) < place(2), "{seen:?}");
        assert_eq!(seen.iter().sum::<u32>(), 13);
    });
}

#[test]
fn an_operation_that_waits_is_woken() {
    check(|| {
        let (submitter, mut receiver) = submission_list::<u32, u32>(2);
        let thread = thread::spawn(move || serve(&mut receiver, 1));
        let operation = submitter.submit(7).unwrap();
        assert_eq!(block_on(operation), Ok(7));
        assert_eq!(thread.join().unwrap(), [7]);
    });
}

#[test]
fn a_dropped_operation_frees_its_slot_once_and_leaks_nothing() {
    check(|| {
        let (submitter, mut receiver) = submission_list::<u32, Arc<u32>>(1);
        let thread = thread::spawn(move || {
            loop {
                receiver.collect();
                if let Some((id, request)) = receiver.take() {
                    // loom reports an `Arc` that is never dropped.
                    receiver.complete(id, Arc::new(request));
                    return receiver;
                }
                thread::yield_now();
            }
        });
        drop(submitter.submit(1).unwrap());
        // The only slot: it is free when both sides have released it, and can then be used again.
        let second = submitter.submit(2);
        let mut receiver = thread.join().unwrap();
        let mut second = match second {
            Ok(second) => second,
            Err(SubmitError::Full(2)) => submitter.submit(2).expect("it must be free now"),
            Err(other) => panic!("{other:?}"),
        };
        assert!(second.try_take().is_none());
        receiver.collect();
        let (id, request) = receiver.take().expect("the second request");
        assert!(receiver.complete(id, Arc::new(request)));
        assert_eq!(second.try_take().map(|result| *result.unwrap()), Some(2));
    });
}

#[test]
fn two_threads_share_few_slots() {
    check(|| {
        let (submitter, mut receiver) = submission_list::<u32, u32>(2);
        let other = submitter.clone();
        let thread = thread::spawn(move || {
            let mut operation = other.submit(1).unwrap();
            drop(other.submit(2));
            operation.try_take()
        });
        let mut operation = submitter.submit(3);
        receiver.collect();
        while let Some((id, request)) = receiver.take() {
            receiver.complete(id, request);
        }
        let first = thread.join().unwrap();
        assert!(matches!(first, None | Some(Ok(1))), "{first:?}");
        if let Ok(operation) = &mut operation {
            let result = operation.try_take();
            assert!(matches!(result, None | Some(Ok(3))), "{result:?}");
        }
    });
}

#[test]
fn the_end_of_the_receiver_ends_every_operation() {
    check(|| {
        let (submitter, mut receiver) = submission_list::<u32, u32>(2);
        let thread = thread::spawn(move || {
            receiver.collect();
            let _ = receiver.take();
        });
        let result = submitter.submit(5).map(|operation| block_on(operation));
        assert!(
            matches!(result, Ok(Err(Closed)) | Err(SubmitError::Closed(5))),
            "neither a result nor a slot"
        );
        thread.join().unwrap();
        assert!(matches!(submitter.submit(6), Err(SubmitError::Closed(6))));
    });
}
