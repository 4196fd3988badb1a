//! Finds the known name that resembles an unknown one, if there is one.

/// Mistakes in a word at most: one for each of this many letters.
const LETTERS_PER_MISTAKE: usize = 3;
/// Mistakes in a long word at most: with more mistakes it is another word.
const MAX_MISTAKES: usize = 2;

/// The name that `word` resembles: with a letter or two more, fewer, changed or swapped. `None` if no name
/// resembles it: a wrong hint is worse than none.
#[must_use]
pub fn similar<'a>(word: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let letters = word.chars().count();
    let mistakes = ((letters + 1) / LETTERS_PER_MISTAKE).min(MAX_MISTAKES);
    // A client's word may have a million letters.
    let is_as_long = |name: &&str| name.chars().count().abs_diff(letters) <= mistakes;
    let as_long = names.into_iter().filter(is_as_long);
    let distances = as_long.map(|name| (strsim::osa_distance(word, name), name));
    let near = distances.filter(|(distance, _)| *distance <= mistakes);
    near.min_by_key(|(distance, _)| *distance).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_resembles_is_meant() {
        let names = ["bdev_malloc_create", "bdev_null_create", "m0", "k", "nqn.b:two"];
        let meant = |word| similar(word, names);
        assert_eq!(meant("bdev_maloc_create"), Some("bdev_malloc_create"));
        assert_eq!(meant("bdev_mallco_create"), Some("bdev_malloc_create"));
        assert_eq!(meant("bdev_nul_creat"), Some("bdev_null_create"));
        assert_eq!(meant("m2"), Some("m0"));
        assert_eq!(meant("nqn.b:tow"), Some("nqn.b:two"));
        for other in ["", "x", "xy", "bdev_raid_create", "nvmf_create_subsystem", "nqn.b:three"] {
            assert_eq!(meant(other), None, "{other}");
        }
        assert_eq!(similar("a", []), None);
        assert_eq!(meant(&"m".repeat(1 << 20)), None);
    }
}
