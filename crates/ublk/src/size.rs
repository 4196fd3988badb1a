//! The size of a disk, which follows that of its device.

use std::io;
use std::time::{Duration, Instant};

/// How long it waits before the kernel is asked again that has refused a size, at first and at most.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Why a disk does not have the size of its device.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The kernel cannot change it.
    Never,
    /// The kernel has refused; it is asked again.
    Now(io::Error),
}

/// A size that the disk cannot have, or not yet.
#[derive(Clone, Copy, Debug)]
struct Refused {
    bytes: u64,
    /// When the kernel is asked again, if it is, and how long that was put off.
    again: Option<(Instant, Duration)>,
}

/// The size.
#[derive(Debug)]
pub(crate) struct Size {
    bytes: u64,
    refused: Option<Refused>,
}

impl Size {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { bytes, refused: None }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Gives the disk the size `wanted`, by `kernel`, if that is to be tried now; tells the new size. `cores` tells those who
    /// check what the kernel asks for. They check by the larger size: they learn of growth before the kernel uses it, and of
    /// less when the kernel has taken that.
    ///
    /// # Errors
    /// When the kernel cannot; each size is told once.
    pub(crate) fn follow(
        &mut self,
        (wanted, now): (u64, Instant),
        kernel: Option<&mut dyn FnMut(u64) -> io::Result<()>>,
        cores: impl Fn(u64),
    ) -> Result<Option<u64>, Refusal> {
        if wanted == self.bytes {
            self.refused = None;
            return Ok(None);
        }
        let before = self.refused.filter(|refused| refused.bytes == wanted);
        if before.is_some_and(|refused| refused.again.is_none_or(|(at, _)| now < at)) {
            return Ok(None);
        }
        let Some(kernel) = kernel else {
            self.refused = Some(Refused { bytes: wanted, again: None });
            return Err(Refusal::Never);
        };
        if wanted > self.bytes {
            cores(wanted);
        }
        if let Err(error) = kernel(wanted) {
            let last = before.and_then(|refused| refused.again);
            let wait = last.map_or(WAITS.0, |(_, wait)| (2 * wait).min(WAITS.1));
            self.refused = Some(Refused { bytes: wanted, again: Some((now + wait, wait)) });
            return if last.is_some() { Ok(None) } else { Err(Refusal::Now(error)) };
        }
        if wanted < self.bytes {
            cores(wanted);
        }
        *self = Self::new(wanted);
        Ok(Some(wanted))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[test]
    fn a_size_that_is_refused_is_tried_again_later_and_told_once() {
        let (start, cores) = (Instant::now(), Cell::new(1000));
        let mut size = Size::new(1000);
        let mut asked = Vec::new();
        for second in 0..200 {
            let now = start + Duration::from_secs(second);
            let mut kernel = |_| {
                asked.push(second);
                Err(io::ErrorKind::ResourceBusy.into())
            };
            let told = size.follow((500, now), Some(&mut kernel), |bytes| cores.set(bytes));
            assert_eq!(told.is_err(), second == 0, "{second}");
            assert_eq!((size.bytes(), cores.get()), (1000, 1000), "I/O behind the new end goes on");
        }
        assert_eq!(asked, [0, 1, 3, 7, 15, 31, 63, 123, 183]);
        // A passing error has no consequences.
        let now = start + Duration::from_secs(300);
        let told = size.follow((500, now), Some(&mut |_| Ok(())), |bytes| cores.set(bytes));
        assert_eq!(told.unwrap(), Some(500));
        assert_eq!((size.bytes(), cores.get()), (500, 500));
        // Another size does not wait for the former one.
        let mut busy = |_| Err(io::ErrorKind::ResourceBusy.into());
        assert!(size.follow((700, now), Some(&mut busy), |bytes| cores.set(bytes)).is_err());
        assert_eq!((size.bytes(), cores.get()), (500, 700), "the device has them");
        assert!(size.follow((800, now), Some(&mut busy), |_| {}).is_err());
        assert_eq!(size.follow((500, now), None, |_| {}).unwrap(), None);
    }

    #[test]
    fn growth_is_known_to_the_cores_before_the_kernel_uses_it() {
        let cores = Cell::new(1000);
        let mut size = Size::new(1000);
        let mut kernel = |_| {
            assert_eq!(cores.get(), 2000);
            Ok(())
        };
        let now = Instant::now();
        let told = size.follow((2000, now), Some(&mut kernel), |bytes| cores.set(bytes));
        assert_eq!(told.unwrap(), Some(2000));
    }

    #[test]
    fn a_kernel_that_cannot_is_told_of_once() {
        let mut size = Size::new(1000);
        let now = Instant::now();
        assert!(matches!(size.follow((2000, now), None, |_| {}), Err(Refusal::Never)));
        let later = now + Duration::from_secs(3600);
        assert_eq!(size.follow((2000, later), None, |_| {}).unwrap(), None);
        assert!(size.follow((3000, later), None, |_| {}).is_err());
        assert_eq!(size.bytes(), 1000);
    }
}
