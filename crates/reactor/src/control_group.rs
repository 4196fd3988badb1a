//! Control groups with limits of memory, of version 1 and 2: those of this process, and those above.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

/// Version 1 says by a number of this size that there is no limit: the largest number of whole pages.
const NO_LIMIT: u64 = 1 << 62;

/// What the versions call the same.
struct Names {
    mount: &'static str,
    limit: &'static str,
    used: &'static str,
    /// Of memory.stat: pages of files that are not in use lately, those that are, and those that differ from the disk.
    inactive: &'static str,
    active: &'static str,
    dirty: &'static str,
}

const VERSION_1: Names = Names {
    mount: "sys/fs/cgroup/memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    inactive: "total_inactive_file",
    active: "total_active_file",
    dirty: "total_dirty",
};
const VERSION_2: Names = Names {
    mount: "sys/fs/cgroup",
    limit: "memory.max",
    used: "memory.current",
    inactive: "inactive_file",
    active: "active_file",
    dirty: "file_dirty",
};

/// A control group, with its files open: they say what is true when they are read.
#[derive(Debug)]
pub struct MemoryGroup {
    limit: File,
    used: File,
    stat: Option<File>,
    names: &'static Names,
}

impl std::fmt::Debug for Names {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.limit)
    }
}

/// Pages of files that a group has in memory, in bytes. The kernel drops them before it refuses memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilePages {
    /// Those not in use lately.
    pub inactive: u64,
    /// Those in use lately.
    pub active: u64,
    /// Those of either that have to be written first.
    pub dirty: u64,
}

impl MemoryGroup {
    /// The group of this process and those above it, nearest first, as far as this process may read them. `root` has the
    /// folders `proc` and `sys`.
    #[must_use]
    pub fn all(root: &Path) -> Vec<Self> {
        let membership = std::fs::read_to_string(root.join("proc/self/cgroup"));
        let membership = membership.unwrap_or_default();
        membership.lines().flat_map(|line| Self::of_line(root, line)).collect()
    }

    /// Those of a line `4:memory:/path` of version 1, or `0::/path` of version 2.
    fn of_line(root: &Path, line: &str) -> Vec<Self> {
        let parts = line.split_once(':').and_then(|(_, rest)| rest.split_once(':'));
        let Some((controllers, path)) = parts else { return Vec::new() };
        let names = match controllers {
            "" => &VERSION_2,
            _ if controllers.split(',').any(|name| name == "memory") => &VERSION_1,
            _ => return Vec::new(),
        };
        let mount = root.join(names.mount);
        let own = mount.join(path.trim_start_matches('/'));
        let folders = own.ancestors().take_while(|folder| folder.starts_with(&mount));
        folders.filter_map(|folder| Self::of(folder, names)).collect()
    }

    fn of(folder: &Path, names: &'static Names) -> Option<Self> {
        let open = |name| File::open(folder.join(name)).ok();
        Some(Self {
            limit: open(names.limit)?,
            used: open(names.used)?,
            stat: open("memory.stat"),
            names,
        })
    }

    /// Bytes that it may use. `None`: there is no limit.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        read(&self.limit)?.trim().parse().ok().filter(|limit| *limit < NO_LIMIT)
    }

    /// Bytes that it uses, pages of files included.
    #[must_use]
    pub fn used(&self) -> Option<u64> {
        read(&self.used)?.trim().parse().ok()
    }

    /// The pages of files among them.
    #[must_use]
    pub fn file_pages(&self) -> FilePages {
        let text = self.stat.as_ref().and_then(read).unwrap_or_default();
        let of = |name: &str| {
            let mut values = text.lines().filter_map(|line| line.split_once(' '));
            let value = values.find(|(key, _)| *key == name);
            value.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
        };
        let Names { inactive, active, dirty, .. } = self.names;
        FilePages { inactive: of(inactive), active: of(active), dirty: of(dirty) }
    }
}

/// The text of a small file of the kernel, as it is now.
pub(crate) fn read(file: &File) -> Option<String> {
    let mut bytes = [0; 8192];
    let count = file.read_at(&mut bytes, 0).ok()?;
    Some(String::from_utf8_lossy(&bytes[..count]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn limits(root: &Path) -> Vec<Option<u64>> {
        MemoryGroup::all(root).iter().map(MemoryGroup::limit).collect()
    }

    #[test]
    fn groups_of_version_2_are_found_upwards() {
        let root = std::env::temp_dir().join(format!("raceline-groups-2-{}", std::process::id()));
        assert!(limits(&root).is_empty());
        write(&root, "proc/self/cgroup", "0::/system/raceline\n");
        write(&root, "sys/fs/cgroup/system/raceline/memory.max", "max\n");
        write(&root, "sys/fs/cgroup/system/raceline/memory.current", "10\n");
        write(&root, "sys/fs/cgroup/system/memory.max", "1000\n");
        write(&root, "sys/fs/cgroup/system/memory.current", "600\n");
        let stat = "anon 7\nfile 300\nfile_dirty 20\ninactive_file 100\nactive_file 80\n";
        write(&root, "sys/fs/cgroup/system/memory.stat", stat);
        assert_eq!(limits(&root), [None, Some(1000)]);
        let all = MemoryGroup::all(&root);
        assert_eq!(all[0].file_pages(), FilePages::default());
        let pages = FilePages { inactive: 100, active: 80, dirty: 20 };
        assert_eq!((all[1].used(), all[1].file_pages()), (Some(600), pages));
        // The files are those of now.
        write(&root, "sys/fs/cgroup/system/memory.max", "2000\n");
        assert_eq!(all[1].limit(), Some(2000));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn groups_of_version_1_are_those_of_its_memory_controller() {
        let root = std::env::temp_dir().join(format!("raceline-groups-1-{}", std::process::id()));
        write(&root, "proc/self/cgroup", "9:cpuset:/x\n4:cpu,memory:/host/path\n0::/init\nodd\n");
        // In a container the path is the host's, and the mount is the container's own group.
        write(&root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "70000\n");
        write(&root, "sys/fs/cgroup/memory/memory.usage_in_bytes", "60000\n");
        let stat = "inactive_file 1\ntotal_inactive_file 9\ntotal_active_file 8\ntotal_dirty 7\n";
        write(&root, "sys/fs/cgroup/memory/memory.stat", stat);
        let all = MemoryGroup::all(&root);
        assert_eq!(all.len(), 1);
        let pages = FilePages { inactive: 9, active: 8, dirty: 7 };
        assert_eq!(
            (all[0].limit(), all[0].used(), all[0].file_pages()),
            (Some(70000), Some(60000), pages)
        );
        write(&root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        assert_eq!(limits(&root), [None]);
        std::fs::remove_dir_all(&root).unwrap();
    }
}
