//! The begin of a run: every host has a path that is up, and every core its queues.

use raceline_host::{Association, PathId, PathSetEvent};

use super::core::{Event, News, PathNews};
use super::stage::{Layout, StageConfig};
use super::{Coordinator, Progress, RunError, TICK};

impl PathNews {
    /// Of the only path of a host: the reason why a run cannot begin, if this is one.
    fn into_failure(self) -> Result<(), RunError> {
        match self.news {
            News::Down(error) | News::GivenUp(error) => Err(error.into()),
            News::Up(_) | News::Changed(_) => Ok(()),
        }
    }
}

impl Coordinator<'_> {
    /// Waits for the first path of each host that comes up, or until one has none. What other paths report meanwhile
    /// waits in `early`.
    pub(super) fn connect(
        &mut self,
        config: &StageConfig,
    ) -> Result<Vec<(PathId, Association)>, RunError> {
        let mut up: Vec<Option<(PathId, Association)>> = vec![None; config.hosts.len()];
        while up.iter().any(Option::is_none) {
            match self.fleet.next_event(TICK)? {
                Some(Event::Path(PathNews { host, path, news: News::Up(association) }))
                    if up[host].is_none() =>
                {
                    up[host] = Some((path, association));
                }
                // Of a single path, a loss ends the run.
                Some(Event::Path(news)) if config.hosts[news.host].more_paths.is_empty() => {
                    news.into_failure()?;
                }
                Some(Event::Path(news)) => {
                    let place = &mut up[news.host];
                    let is_its = place.as_ref().is_some_and(|(path, _)| *path == news.path);
                    if is_its && !matches!(news.news, News::Changed(_)) {
                        *place = None; // it is lost again
                    } else {
                        self.early.push(news);
                    }
                }
                Some(Event::Unreachable(error) | Event::Failed(_, error)) => {
                    return Err(error.into());
                }
                Some(Event::Queues(_, PathSetEvent::Lost { error, .. })) => {
                    return Err(error.into());
                }
                Some(_) => {}
                None if !(self.watch)(Progress::Connecting) => return Err(RunError::Stopped),
                None => {}
            }
        }
        Ok(up.into_iter().flatten().collect())
    }

    pub(super) fn wait_ready(
        &mut self,
        config: &StageConfig,
        layout: &Layout,
    ) -> Result<(), RunError> {
        let mut ready = 0;
        while ready < self.fleet.cores.len() {
            match self.fleet.next_event(TICK)? {
                Some(Event::Ready) => ready += 1,
                Some(Event::Path(news)) if config.hosts[news.host].more_paths.is_empty() => {
                    news.into_failure()?;
                }
                Some(Event::Queues(host, PathSetEvent::Lost { error, .. }))
                    if config.hosts[host].more_paths.is_empty() =>
                {
                    return Err(error.into());
                }
                Some(Event::Unreachable(error) | Event::Failed(_, error)) => {
                    return Err(error.into());
                }
                Some(event) => self.fleet.pass_on(layout, event),
                None if !(self.watch)(Progress::Connecting) => return Err(RunError::Stopped),
                None => {}
            }
        }
        Ok(())
    }
}
