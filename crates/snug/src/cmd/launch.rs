//! `snug launch`: a coding agent, told of a server and started.

use crate::args::LaunchArgs;
use crate::fault::{Ended, usage};
use crate::output::{line, note};
use crate::{interrupt, resolve};
use anyhow::Context;
use snug::launch::server::{Client, Error, Started};
use snug::launch::{Served, Setup, environment, pace};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::time::{SystemTime, UNIX_EPOCH};

const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// Finds or starts the server, writes the configuration, says what to expect, and hands over to the agent.
pub fn run(a: &LaunchArgs) -> anyhow::Result<Ended> {
    let client = Client::new(a.url.as_deref().unwrap_or(DEFAULT_URL), a.api_key.clone())?;
    // Before a model is loaded for it.
    let (name, install) = a.agent.program();
    let program = find(name, std::env::var_os("PATH").as_deref());
    let program = match program {
        Some(p) => p,
        // Nothing is started, and `show` says that it could not be.
        None if a.dry_run => PathBuf::new(),
        None => return usage(format!("there is no `{name}` in PATH; `{install}` installs it")),
    };
    let (served, _server) = server(a, &client)?;
    let setup = a.agent.setup(&served, &own_directory()?);
    check(&served, &setup)?;
    let change = Change::of(&client);
    if a.dry_run {
        return show(a, &served, &setup, &change);
    }
    note(format_args!("{} at {}, {} positions", served.model, served.url, served.context));
    match pace::measure(&client, &served.model, served.context, seed()) {
        Ok(rate) => note(pace::forecast(rate, served.context)),
        Err(e) => note(format_args!("how fast the server reads could not be measured: {e}")),
    }
    write(&setup)?;
    let status = interrupt::left_to_another(|| start(&program, a, &setup, &change))?;
    Ok(Ended::With(code(status)))
}

/// The server that answers, or one that is started; in a dry run, what it would be.
fn server(a: &LaunchArgs, client: &Client) -> anyhow::Result<(Served, Option<Started>)> {
    let mut said = false;
    client.wait(&mut |share| {
        if !std::mem::replace(&mut said, true) {
            let percent = share * 100.0;
            note(format_args!("the server at {} is loading its model ({percent:.0}%): waiting for it", client.url()));
        }
    });
    match client.served(a.model.as_deref()) {
        Ok(served) => return Ok((served, None)),
        Err(Error::Silent { .. }) if client.is_loopback() => {}
        Err(e) => return Err(e.into()),
    }
    if a.dry_run {
        return would_be(a, client).map(|s| (s, None));
    }
    let log = own_directory()?.join("serve.log");
    note(format_args!("no server at {}: starting one; its log is {}", client.url(), log.display()));
    let started = Started::start(a.model.as_deref(), client, &log)?;
    Ok((client.served(None)?, Some(started)))
}

/// What a server would say of a model: its context as far as memory allows, which only loading it tells for certain.
fn would_be(a: &LaunchArgs, client: &Client) -> anyhow::Result<Served> {
    let opened = engine::open::Opened::open(resolve::source(a.model.as_deref())?)?;
    let context = opened.family.spec().context.min(engine::plan::DEFAULT_CONTEXT);
    note(format_args!("no server at {}: one would be started, its context {context} if memory allows", client.url()));
    let (model, tools) = crate::serve::known(&opened, a.model.as_deref())?;
    Ok(Served {
        url: client.url().into(),
        key: a.api_key.clone().unwrap_or_else(|| "none".into()),
        model,
        context,
        tools,
    })
}

fn own_directory() -> anyhow::Result<PathBuf> {
    match engine::machine::home() {
        Some(h) => Ok(h.join("agents")),
        None => usage("neither SNUG_HOME nor HOME is set, so there is no place for an agent's configuration"),
    }
}

fn check(served: &Served, setup: &Setup) -> anyhow::Result<()> {
    if served.context < setup.least_context {
        let (has, least) = (served.context, setup.least_context);
        return usage(format!("{} needs {least} positions; {} has {has}", setup.program, served.model));
    }
    if !served.tools {
        note(format_args!(
            "warning: {} cannot call tools, so {} can do nothing with it but talk, and requests that offer tools are refused",
            served.model, setup.program
        ));
    }
    if served.context < pace::FIRST_TURN + pace::FIRST_TURN / 4 {
        note(format_args!(
            "warning: an agent's first prompt is about {} tokens, and {} has {} positions: it will be refused or \
             have no room",
            pace::FIRST_TURN,
            served.model,
            served.context
        ));
    }
    Ok(())
}

/// How the environment of an agent differs from this one, besides what its setup adds.
struct Change {
    remove: Vec<String>,
    no_proxy: Option<String>,
}

impl Change {
    fn of(client: &Client) -> Self {
        let get = |name: &str| std::env::var(name).ok();
        Change {
            remove: environment::to_remove(std::env::vars_os()),
            no_proxy: environment::no_proxy(get, client.host()),
        }
    }
}

/// What would be done, on stdout.
fn show(a: &LaunchArgs, served: &Served, setup: &Setup, change: &Change) -> anyhow::Result<Ended> {
    line(format_args!("server   {}, model {}, {} positions", served.url, served.model, served.context))?;
    for (path, text) in &setup.files {
        line(format_args!("file     {}\n{}", path.display(), text.trim_end()))?;
    }
    for name in &change.remove {
        line(format_args!("without  {name}"))?;
    }
    for (name, value) in &setup.env {
        let secret = a.api_key.as_ref().is_some_and(|k| k == value);
        line(format_args!("with     {name}={}", if secret { "(the key)" } else { value.as_str() }))?;
    }
    if let Some(hosts) = &change.no_proxy {
        line(format_args!("with     NO_PROXY={hosts}"))?;
    }
    line(format_args!("start    {} {}", setup.program, shell_words(&arguments(a, setup))))?;
    if find(setup.program, std::env::var_os("PATH").as_deref()).is_none() {
        note(format_args!("there is no `{}` in PATH; `{}` installs it", setup.program, setup.install));
    }
    Ok(Ended::Done)
}

fn arguments(a: &LaunchArgs, setup: &Setup) -> Vec<String> {
    let own = setup.args.iter().cloned();
    if a.args.is_empty() {
        return own.chain(setup.default_args.iter().map(|s| (*s).to_string())).collect();
    }
    own.chain(a.args.iter().cloned()).collect()
}

/// Words as a shell takes them.
fn shell_words(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    let quoted = |w: &String| match !w.is_empty() && w.chars().all(plain) {
        true => w.clone(),
        false => format!("'{}'", w.replace('\'', r"'\''")),
    };
    words.iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn write(setup: &Setup) -> anyhow::Result<()> {
    for (path, text) in &setup.files {
        let dir = path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

fn start(program: &Path, a: &LaunchArgs, setup: &Setup, change: &Change) -> anyhow::Result<ExitStatus> {
    let mut command = Command::new(program);
    command.args(arguments(a, setup));
    change.remove.iter().for_each(|n| {
        command.env_remove(n);
    });
    if let Some(hosts) = &change.no_proxy {
        command.env("NO_PROXY", hosts).env("no_proxy", hosts);
    }
    command.envs(setup.env.iter().map(|(k, v)| (k, v)));
    command.status().with_context(|| format!("cannot start {}", program.display()))
}

/// A program by name in a list of directories.
fn find(program: &str, path: Option<&std::ffi::OsStr>) -> Option<PathBuf> {
    std::env::split_paths(path?).map(|d| d.join(program)).find(|p| is_program(p))
}

fn is_program(p: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(p).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

/// The code of a process; of one that a signal ended, 128 and the signal, as shells have it.
fn code(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt;
    let n = status.code().or_else(|| status.signal().map(|s| 128 + s)).unwrap_or(1);
    u8::try_from(n).unwrap_or(1)
}

/// Another number for every start.
fn seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_survive_a_shell() {
        let words = ["-c", "a=\"b c\"", "", "it's"].map(String::from);
        assert_eq!(shell_words(&words), r#"-c 'a="b c"' '' 'it'\''s'"#);
    }
}
