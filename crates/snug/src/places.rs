//! Where models lie on this machine: our own store, and what other programs have downloaded.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A place with models in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Ours: `.gguf` files and directories side by side.
    Store(PathBuf),
    /// Hugging Face's cache: `models--ORG--NAME/snapshots/REVISION`.
    HuggingFace(PathBuf),
    /// Ollama's: manifests that name blobs.
    Ollama(PathBuf),
    /// LM Studio's: `PUBLISHER/NAME/FILE.gguf`.
    LmStudio(PathBuf),
}

/// Models by name.
pub type Models = BTreeMap<String, PathBuf>;

/// The places that a user's environment leads to; `var` reads it.
pub fn places(store: Option<PathBuf>, var: impl Fn(&str) -> Option<PathBuf>) -> Vec<Place> {
    let home = var("HOME").or_else(|| var("USERPROFILE"));
    let under = |rest: &str| home.as_ref().map(|h| h.join(rest));
    let cache = var("XDG_CACHE_HOME").or_else(|| under(".cache"));
    let hub = var("HF_HUB_CACHE").or_else(|| Some(var("HF_HOME")?.join("hub")));
    let hub = hub.or_else(|| cache.as_ref().map(|c| c.join("huggingface/hub")));
    let ollama = var("OLLAMA_MODELS").or_else(|| under(".ollama/models"));
    // Where the service keeps them when it runs as a user of its own.
    let service = Some(PathBuf::from("/usr/share/ollama/.ollama/models"));
    let studio = [under(".lmstudio/models"), cache.map(|c| c.join("lm-studio/models"))];
    let all = store.map(Place::Store).into_iter().chain(hub.map(Place::HuggingFace));
    let all = all.chain([ollama, service].into_iter().flatten().map(Place::Ollama));
    all.chain(studio.into_iter().flatten().map(Place::LmStudio)).collect()
}

impl Place {
    /// Its models by the names they are called by. A place that is not there has none, and so has what cannot be read in
    /// a place of another program; our own store is an error then.
    ///
    /// # Errors
    /// When our own store is there and cannot be read.
    pub fn models(&self) -> std::io::Result<Models> {
        match self {
            Place::Store(dir) => store(dir),
            Place::HuggingFace(dir) => Ok(hugging_face(dir)),
            Place::Ollama(dir) => Ok(ollama(dir)),
            Place::LmStudio(dir) => Ok(lm_studio(dir)),
        }
    }
    /// What to call it.
    pub fn name(&self) -> &'static str {
        match self {
            Place::Store(_) => "store",
            Place::HuggingFace(_) => "Hugging Face cache",
            Place::Ollama(_) => "Ollama",
            Place::LmStudio(_) => "LM Studio",
        }
    }
}

/// Entries of a directory, sorted; none where it cannot be listed.
fn entries(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|e| e.path()).collect();
    all.sort();
    all
}

fn file_name(p: &Path) -> Option<&str> {
    p.file_name()?.to_str()
}

fn store(dir: &Path) -> std::io::Result<Models> {
    if !dir.is_dir() {
        return Ok(Models::new());
    }
    let mut models = Models::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        models.extend(name_of(&path).map(|name| (name, path)));
    }
    Ok(models)
}

/// What a file or a directory with weights in it is called, `None` for what is no model by itself.
fn name_of(path: &Path) -> Option<String> {
    if path.is_dir() {
        let has_weights = entries(path).iter().any(|e| has_extension(e, "gguf") || has_extension(e, "safetensors"));
        return has_weights.then(|| file_name(path).map(str::to_string)).flatten();
    }
    if !has_extension(path, "gguf") || checkpoint::is_companion(path) {
        return None;
    }
    let stem = path.file_stem()?.to_str()?;
    match split_part(stem) {
        Some((name, 1)) => Some(name.to_string()),
        Some(_) => None,
        None => Some(stem.to_string()),
    }
}

fn has_extension(p: &Path, wanted: &str) -> bool {
    p.extension().is_some_and(|e| e == wanted)
}

/// `name-00002-of-00003` is part 2 of `name`.
fn split_part(stem: &str) -> Option<(&str, u32)> {
    let (head, count) = stem.rsplit_once("-of-")?;
    let (name, part) = head.rsplit_once('-')?;
    let five_digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    (five_digits(part) && five_digits(count)).then(|| Some((name, part.parse().ok()?))).flatten()
}

/// The newest revision of each repository, by `refs/main` or else the last one changed. A repository of GGUF files gives
/// one model a file, `ORG/NAME/FILE`.
fn hugging_face(dir: &Path) -> Models {
    let mut models = Models::new();
    for repo in entries(dir) {
        let Some(id) = file_name(&repo).and_then(|n| n.strip_prefix("models--")) else { continue };
        let id = id.replace("--", "/");
        let Some(snapshot) = snapshot(&repo) else { continue };
        if entries(&snapshot).iter().any(|e| has_extension(e, "safetensors")) {
            models.insert(id.clone(), snapshot.clone());
        }
        models.extend(gguf_files(&snapshot, &id, 2));
    }
    models
}

fn snapshot(repo: &Path) -> Option<PathBuf> {
    let all = repo.join("snapshots");
    let main = std::fs::read_to_string(repo.join("refs/main")).ok().map(|r| all.join(r.trim()));
    if let Some(main) = main.filter(|p| p.is_dir()) {
        return Some(main);
    }
    let changed = |p: &PathBuf| std::fs::metadata(p).and_then(|m| m.modified()).ok();
    entries(&all).into_iter().filter(|p| p.is_dir()).max_by_key(changed)
}

/// GGUF files below a directory, down to `depth` directories further, as `ROOT/FILE`.
fn gguf_files(dir: &Path, root: &str, depth: u32) -> Models {
    let mut models = Models::new();
    for path in entries(dir) {
        if path.is_dir() && depth > 0 {
            models.extend(gguf_files(&path, root, depth - 1));
        } else if path.is_file() {
            models.extend(name_of(&path).map(|name| (format!("{root}/{name}"), path)));
        }
    }
    models
}

/// `PUBLISHER/NAME/FILE.gguf`, or safetensors in `PUBLISHER/NAME`.
fn lm_studio(dir: &Path) -> Models {
    let mut models = Models::new();
    for publisher in entries(dir).into_iter().filter(|p| p.is_dir()) {
        for repo in entries(&publisher).into_iter().filter(|p| p.is_dir()) {
            let (Some(by), Some(name)) = (file_name(&publisher), file_name(&repo)) else { continue };
            let id = format!("{by}/{name}");
            if entries(&repo).iter().any(|e| has_extension(e, "safetensors")) {
                models.insert(id.clone(), repo.clone());
            }
            models.extend(gguf_files(&repo, &id, 1));
        }
    }
    models
}

/// `manifests/HOST/NAMESPACE/NAME/TAG` is a JSON file whose layer of type `...image.model` names a blob. Models of the
/// usual host and namespace are `NAME:TAG`, others `NAMESPACE/NAME:TAG`, with the host before it where that is another.
fn ollama(dir: &Path) -> Models {
    let mut models = Models::new();
    for host in entries(&dir.join("manifests")) {
        for namespace in entries(&host) {
            for name in entries(&namespace) {
                for tag in entries(&name) {
                    let parts = [&host, &namespace, &name, &tag].map(|p| file_name(p));
                    let [Some(h), Some(ns), Some(n), Some(t)] = parts else { continue };
                    let Some(blob) = model_blob(&tag, dir) else { continue };
                    let called = match (h, ns) {
                        ("registry.ollama.ai", "library") => format!("{n}:{t}"),
                        ("registry.ollama.ai", _) => format!("{ns}/{n}:{t}"),
                        _ => format!("{h}/{ns}/{n}:{t}"),
                    };
                    models.insert(called, blob);
                }
            }
        }
    }
    models
}

fn model_blob(manifest: &Path, dir: &Path) -> Option<PathBuf> {
    let json: serde_json::Value = serde_json::from_slice(&std::fs::read(manifest).ok()?).ok()?;
    let layer = json["layers"]
        .as_array()?
        .iter()
        .find(|l| l["mediaType"].as_str().is_some_and(|t| t.ends_with("image.model")))?;
    let digest = layer["digest"].as_str()?.strip_prefix("sha256:")?;
    let hex = !digest.is_empty() && digest.bytes().all(|b| b.is_ascii_hexdigit());
    let blob = dir.join("blobs").join(format!("sha256-{digest}"));
    (hex && blob.is_file()).then_some(blob)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for f in files {
            let path = dir.path().join(f);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        dir
    }

    fn names(p: &Place) -> Vec<String> {
        p.models().unwrap().into_keys().collect()
    }

    #[test]
    fn a_store_lists_files_sets_and_directories_once() {
        let files = ["a.gguf", "mtp-a.gguf", "mmproj-a.gguf", "b-00001-of-00002.gguf", "b-00002-of-00002.gguf"];
        let dir = tree(&[&files[..], &["c/model.safetensors", "notes.txt", "d/x"]].concat());
        let models = Place::Store(dir.path().into()).models().unwrap();
        assert_eq!(models.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(models["b"], dir.path().join("b-00001-of-00002.gguf"));
    }

    #[test]
    fn the_hugging_face_cache_lists_the_revision_that_main_names() {
        let dir = tree(&[
            "models--org--safe/snapshots/1111/model.safetensors",
            "models--org--safe/snapshots/2222/model.safetensors",
            "models--org--safe/snapshots/2222/config.json",
            "models--org--quant/snapshots/aaaa/Q4_0/m-Q4_0-00001-of-00002.gguf",
            "models--org--quant/snapshots/aaaa/Q4_0/m-Q4_0-00002-of-00002.gguf",
            "models--org--quant/snapshots/aaaa/m-Q8_0.gguf",
            "models--org--quant/snapshots/aaaa/mmproj-f16.gguf",
            "models--org--empty/refs/main",
            "datasets--org--data/snapshots/1/x.safetensors",
        ]);
        std::fs::create_dir_all(dir.path().join("models--org--safe/refs")).unwrap();
        std::fs::write(dir.path().join("models--org--safe/refs/main"), "1111\n").unwrap();
        let models = Place::HuggingFace(dir.path().into()).models().unwrap();
        assert_eq!(models.keys().collect::<Vec<_>>(), ["org/quant/m-Q4_0", "org/quant/m-Q8_0", "org/safe"]);
        assert_eq!(models["org/safe"], dir.path().join("models--org--safe/snapshots/1111"));
    }

    #[test]
    fn ollama_manifests_lead_to_blobs() {
        let dir = tree(&["blobs/sha256-ab12", "blobs/sha256-cd34"]);
        let manifest = |path: &str, digest: &str| {
            let file = dir.path().join("manifests").join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            let layer = |kind: &str, d: &str| serde_json::json!({"mediaType": format!("application/vnd.ollama.image.{kind}"), "digest": d});
            let json = serde_json::json!({"layers": [layer("template", "sha256:cd34"), layer("model", digest)]});
            std::fs::write(file, json.to_string()).unwrap();
        };
        manifest("registry.ollama.ai/library/qwen3/8b", "sha256:ab12");
        manifest("registry.ollama.ai/somebody/own/latest", "sha256:cd34");
        manifest("example.org/team/own/latest", "sha256:ab12");
        manifest("registry.ollama.ai/library/gone/1b", "sha256:ef56");
        manifest("registry.ollama.ai/library/bad/1b", "sha256:../../etc/passwd");
        std::fs::write(dir.path().join("manifests/registry.ollama.ai/library/qwen3/broken"), "{").unwrap();
        let models = Place::Ollama(dir.path().into()).models().unwrap();
        assert_eq!(
            models.keys().collect::<Vec<_>>(),
            ["example.org/team/own:latest", "qwen3:8b", "somebody/own:latest"]
        );
        assert_eq!(models["qwen3:8b"], dir.path().join("blobs/sha256-ab12"));
    }

    #[test]
    fn lm_studio_folders_are_publisher_and_name() {
        let dir =
            tree(&["pub/repo/m-Q4_K_M.gguf", "pub/repo/mmproj-m.gguf", "pub/mlx/model.safetensors", "pub/x.gguf"]);
        assert_eq!(names(&Place::LmStudio(dir.path().into())), ["pub/mlx", "pub/repo/m-Q4_K_M"]);
    }

    #[test]
    fn places_follow_the_environment() {
        let var = |vars: &'static [(&'static str, &'static str)]| {
            move |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| PathBuf::from(v))
        };
        let all = places(None, var(&[("HOME", "/u")]));
        assert!(all.contains(&Place::HuggingFace("/u/.cache/huggingface/hub".into())), "{all:?}");
        assert!(all.contains(&Place::Ollama("/u/.ollama/models".into())), "{all:?}");
        assert!(all.contains(&Place::LmStudio("/u/.lmstudio/models".into())), "{all:?}");
        let all = places(Some("/s".into()), var(&[("HOME", "/u"), ("HF_HOME", "/h"), ("OLLAMA_MODELS", "/o")]));
        assert_eq!(
            all[..3],
            [Place::Store("/s".into()), Place::HuggingFace("/h/hub".into()), Place::Ollama("/o".into())]
        );
        let all = places(None, var(&[("HF_HOME", "/h"), ("HF_HUB_CACHE", "/c")]));
        assert_eq!(all[0], Place::HuggingFace("/c".into()));
    }

    #[test]
    fn places_that_are_not_there_are_empty() {
        for place in [Place::Store, Place::HuggingFace, Place::Ollama, Place::LmStudio] {
            assert!(place("/nowhere/at/all".into()).models().unwrap().is_empty());
        }
    }
}
