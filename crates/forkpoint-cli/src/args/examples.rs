//! The last part of each help text: examples, and what a script must know.

pub(super) const MAIN: &str = "\
Examples:
  forkpoint demo                          see what it does, in a second
  forkpoint run -- sh -c 'echo hello'     run a command in a new sandbox
  forkpoint create --name web             a sandbox to come back to
  forkpoint snapshot web -m 'it works'    keep this moment
  forkpoint rollback web                  go back to it
  forkpoint fork web -n 8 --name try      eight copies, try-1 to try-8
  forkpoint snapshot docker:webapp        any container of Docker's is a sandbox
  forkpoint run --name fix --workspace .  let an agent loose on this directory,
  forkpoint apply fix                     and bring home what it changed

A SANDBOX is an id, an unambiguous prefix of one, or a name; `docker:NAME` is a container of Docker's,
by its name or id, whether or not it was made here. A SNAPSHOT is an id, a prefix, a name,
or `SANDBOX@latest`, `SANDBOX@2` (the second newest). `forkpoint VERB --help` has examples for each.

Exit codes:
  0 done   1 failed   2 usage   3 not found   4 conflict or busy   5 unsupported here
  6 denied   7 corrupt   130 interrupted
  `run` and `exec` give the command's own code, 128+N after signal N, 124 after --timeout;
  125 is a failure of ours, 126 a command that cannot be executed, 127 one that is not found.

With --json an error is {\"error\": {\"kind\", \"message\", \"hint\"}} on stderr.";

pub(super) const DEMO: &str = "\
Needs no argument, no image and no network. It works in a temporary directory of its own and
removes it at the end, also after Ctrl-C.

Examples:
  forkpoint demo
  forkpoint demo -n 20          fork twenty copies
  forkpoint demo --json         the steps and their times

JSON: {\"steps\": [{\"name\", \"ms\"}], \"total_ms\"}";

pub(super) const DOCTOR: &str = "\
The exit code is 0 when the default driver works, 5 when it does not.

Examples:
  forkpoint doctor
  forkpoint doctor --json | jq '.checks[] | select(.verdict == \"no\")'

JSON: {\"driver\", \"works\", \"data_dir\", \"checks\": [{\"name\", \"verdict\": \"yes|limited|no\",
\"detail\", \"way_out\"}], \"docker\": {\"works\", \"checks\"}}; \"checks\" are those of driver `local`";

pub(super) const RUN: &str = "\
The exit code is the command's own. Signals go on to the command. The sandbox stays afterwards,
unless --rm is given; with --ttl the command is killed and the sandbox goes when its time is over.

Examples:
  forkpoint run                                   a shell in a new sandbox
  forkpoint run --rm -- make test                 try something, keep nothing
  forkpoint run --name web --env PORT=80 -- ./setup.sh
  forkpoint run --memory 512M --cpus 1.5 --timeout 60s -- python3 job.py
  echo 2+2 | forkpoint run --rm -i -- bc
  forkpoint run --rm --template registry:python:3.12-slim -- python3 -c 'print(42)'
  forkpoint run --name fix --workspace . -- ./agent   on this directory, which stays as it is

A live workspace shows what DIR has now, but for what the sandbox changed; a sandbox that runs may
see a file as it was before until its next snapshot, or stop and start. What is mounted inside DIR
is not shown. `forkpoint apply --help` tells how changes come home.";

pub(super) const CREATE: &str = "\
Examples:
  forkpoint create --name web
  forkpoint create --template dir:/srv/rootfs --label team=a
  box=$(forkpoint create --network host --workdir /srv)
  forkpoint create --name scratch --ttl 4h

  forkpoint create --driver docker --template nginx --name front --publish 8080:80
  forkpoint create --name fix --workspace ~/project:/srv/project --workspace-mode copy

JSON: the sandbox, as in `forkpoint ps --help`";

pub(super) const EXEC: &str = "\
The exit code is the command's own. Signals go on to the command.

Examples:
  forkpoint exec web -- ls -l /srv
  forkpoint exec -it web -- bash
  tar c src | forkpoint exec -i web -- tar x -C /srv
  forkpoint exec --timeout 30s --user nobody --env DEBUG=1 web -- ./test";

pub(super) const PS: &str = "\
Examples:
  forkpoint ps
  forkpoint ps --label team=a
  forkpoint ps --usage          also what each uses
  forkpoint rm --force $(forkpoint ps -q)

JSON: {\"sandboxes\": [{\"id\", \"name\", \"state\": \"running|paused|stopped|lost|unknown\", \"driver\",
\"template\", \"head\", \"labels\", \"created\", \"expires\", \"adopted\", \"native_name\", \"workdir\",
\"user\", \"network\",
\"memory_bytes\", \"cpu_millis\", \"pids\", \"workspaces\": [{\"source\", \"at\", \"mode\": \"live|copy\",
\"since\"}]}]}, with --usage also \"usage\": {\"disk_bytes\", \"memory_bytes\",
\"processes\", \"cpu_ms\", \"killed_for_memory\"}; environments stay out, for they often hold secrets";

pub(super) const RM: &str = "\
Asks first on a terminal. A sandbox that was adopted is forgotten, never destroyed.

Examples:
  forkpoint rm web
  forkpoint rm --force try-1 try-2 try-3

JSON: {\"removed\": [ID], \"failed\": [{\"reference\", \"error\"}]}";

pub(super) const STOP: &str = "\
Examples:
  forkpoint stop web
  forkpoint stop web api && forkpoint start web api

JSON: {\"done\": [SANDBOX], \"failed\": [{\"reference\", \"error\"}]}";

pub(super) const START: &str = "\
Commands that ran before the stop do not come back; the files do.

Examples:
  forkpoint start web

JSON: {\"done\": [SANDBOX], \"failed\": [{\"reference\", \"error\"}]}";

pub(super) const PAUSE: &str = "\
A paused sandbox uses no processor, keeps its memory, and can be snapshotted.

Examples:
  forkpoint pause web

JSON: {\"done\": [SANDBOX], \"failed\": [{\"reference\", \"error\"}]}";

pub(super) const RESUME: &str = "\
Examples:
  forkpoint resume web

JSON: {\"done\": [SANDBOX], \"failed\": [{\"reference\", \"error\"}]}";

pub(super) const SNAPSHOT: &str = "\
The sandbox stands still only while its state is sealed: milliseconds.

Examples:
  forkpoint snapshot web
  forkpoint snapshot web -m 'before the migration' --name before
  forkpoint snapshot web --trigger after_action --run-id r7 --step 12 --agent-state memory.json
  forkpoint snapshot docker:webapp            a container, by its own name
  forkpoint snapshot web --skip-unchanged     prints the last one's id if nothing changed since

What was to be written on a snapshot that was skipped is not kept, and told.

JSON: the snapshot, as in `forkpoint list --help`; {\"skipped\": REASON} when its trigger is off, and
with \"snapshot\": ID when nothing changed";

pub(super) const RESTORE: &str = "\
Examples:
  forkpoint restore before --name web-again
  forkpoint restore web@2                the second newest snapshot of web
  forkpoint restore docker:webapp@latest --name again --publish 8081:80
  forkpoint restore docker:webapp@latest --no-preserve-networks --volumes share

A live workspace that the host changed since the snapshot is told. A container gets volumes of its
own unless --volumes says otherwise; directories of the host that were mounted are mounted again. A
port of the host that is taken is replaced by a free one, which is told. The sandbox stays until it
is removed, unless --ttl or `defaults.ttl` of the configuration says how long.

JSON: the sandbox, as in `forkpoint ps --help`, with \"drift\": [{\"source\", \"at\",
\"changed\", \"examples\", \"complete\"}]: what the host changed in its workspace since the snapshot";

pub(super) const ROLLBACK: &str = "\
Id, name and labels stay. What was done since the snapshot is lost; take one first to keep it.

Examples:
  forkpoint rollback web
  forkpoint rollback web before
  forkpoint rollback web web@2
  forkpoint rollback docker:webapp       replaced under its name, with its networks and ports

JSON: {\"sandbox\": SANDBOX, \"to\": SNAPSHOT, \"drift\": as in `forkpoint restore --help`,
\"made_anew\": why processes of a full snapshot did not go back in place, which -v tells too}";

pub(super) const FORK: &str = "\
A sandbox is snapshotted first. A copy that fails is undone and reported alone; the exit code is
then 1, and the ids of the others are printed all the same. Copies stay until they are removed,
unless --ttl or `defaults.ttl` of the configuration says how long.

Examples:
  forkpoint fork web
  forkpoint fork web -n 40 --name try
  forkpoint fork before -n 2 --env SEED=1
  forkpoint fork docker:webapp -n 8 --name try    each with volumes, addresses and ports of its own

JSON: {\"snapshot\", \"sandboxes\": [{\"id\", \"name\"}], \"failed\": [{\"id\", \"name\", \"error\"}],
\"drift\": as in `forkpoint restore --help`}";

pub(super) const LIST: &str = "\
Examples:
  forkpoint list
  forkpoint list --sandbox web --trigger after_action
  forkpoint list --label team=a --limit 5 --json
  forkpoint list --sandbox docker:webapp

JSON: {\"snapshots\": [{\"id\", \"name\", \"sandbox\", \"sandbox_name\", \"parent\", \"driver\", \"template\",
\"kind\", \"trigger\", \"description\", \"context\", \"run_id\", \"step\", \"labels\", \"agent_state_bytes\",
\"own_bytes\", \"total_bytes\", \"file_count\", \"created\", \"expires\", \"pinned\", \"last_restored\",
\"restore_count\", \"durable\", \"workspaces\"}], \"more\": true|false}";

pub(super) const SHOW: &str = "\
Examples:
  forkpoint show before
  forkpoint show web@latest --json
  forkpoint show before --agent-state > memory.json

JSON: the snapshot, as in `forkpoint list --help`, with \"ancestors\": [ID], nearest first, and
\"children\": [ID]";

pub(super) const LOG: &str = "\
Examples:
  forkpoint log
  forkpoint log web

● is a snapshot of files, ◆ a full one, with processes and memory. ◀ names the sandboxes that stand
on it.

JSON: {\"snapshots\": [{\"id\", \"name\", \"parent\", \"depth\", \"sandbox\", \"sandbox_name\", \"kind\",
\"trigger\", \"description\", \"own_bytes\", \"created\", \"deleted\", \"here\": [SANDBOX ID]}]}, each parent
before its children";

pub(super) const DIFF: &str = "\
A is added, D deleted, M changed, T another kind of thing, m another mode or owner, R renamed. Times
and extended attributes are not compared. A snapshot and a sandbox of the same name: the sandbox.
With one directory as PATH, a patch has its paths from there. On a terminal --patch and --stat go
through $FORKPOINT_PAGER, $PAGER or less. The exit code is 0 whether or not anything changed.

Examples:
  forkpoint diff web                      since where it stands
  forkpoint diff web@latest               what the newest snapshot changed
  forkpoint diff before web --stat
  forkpoint diff try-1 try-2 -- /srv/app
  forkpoint diff web --patch -- /srv/app | git apply

JSON: {\"from\", \"to\", \"changes\": [{\"change\": \"added|deleted|changed|retyped|attributes|renamed\",
\"path\", \"renamed_from\", \"before\": FACTS, \"after\": FACTS}], \"too_deep\"} with FACTS as in
`forkpoint ls --help`, or null; a path that is not UTF-8 is a list of bytes";

pub(super) const LS: &str = "\
Looks in from outside: it need not run. Names that begin with a dot are shown.

Examples:
  forkpoint ls web
  forkpoint ls -l web@latest:/etc
  forkpoint ls -R before:/srv

JSON: {\"entries\": [{\"path\", \"kind\": \"file|directory|symlink|fifo|socket|char_device|
block_device\", \"mode\", \"uid\", \"gid\", \"len_bytes\", \"modified\", \"target\"}]}; mode is in octal, a
path that is not UTF-8 a list of bytes, and target is there for symbolic links";

pub(super) const CAT: &str = "\
Symbolic links are followed inside the sandbox or snapshot, never out of it.

Examples:
  forkpoint cat web:/etc/os-release
  forkpoint cat before:/srv/config web:/srv/config";

pub(super) const CP: &str = "\
One side is REF:PATH, the other a path here; write ./a:b for a path here with a colon. Links are
copied as links, modes are kept, but for set-user-id and the like on the way out; owners are not.
What is neither file, directory nor link is left out and told. A file is replaced when it is
complete, not before. Only a sandbox that runs can be copied into; snapshots never change.

Examples:
  forkpoint cp web:/srv/report.html .
  forkpoint cp -r src web:/srv/app
  forkpoint cp -r before:/srv/app/. ./app
  tar c src | forkpoint cp - web:/tmp/src.tar

JSON: {\"files\", \"directories\", \"links\", \"bytes\", \"skipped\": [TEXT]}";

pub(super) const EDIT: &str = "\
What a snapshot holds never changes; what is written on it can.

Examples:
  forkpoint edit before --pin
  forkpoint edit web@latest --name good -m 'all tests pass' --label team=a
  forkpoint edit before --unpin --expires 7d --remove-label team

JSON: the snapshot, as in `forkpoint list --help`";

pub(super) const DELETE: &str = "\
Asks first on a terminal. An id that is gone already is a success. With several, each has its own
fate, and the exit code is that of the worst.

Examples:
  forkpoint delete before
  forkpoint delete --force $(forkpoint list -q --sandbox web)

JSON: {\"deleted\": [ID], \"failed\": [{\"reference\", \"error\"}]}";

pub(super) const APPLY: &str = "\
What the sandbox changed in its workspace is written to the directory that it came from. If the
original changed meanwhile in the same places, nothing is done, and the exit code is 4. Each file is
replaced at once: after a crash it is the old one or the new one, and applying again goes on. Modes
come along, but no set-user-id bits, except where a file keeps its content; owners do not. A path
that is neither in the sandbox nor in the original is an error, with exit code 3. Sockets, fifos and
devices stay behind, and hard links come home as separate files. What was applied can be applied
again after more work.

With a live workspace, `changed meanwhile` goes by the dates of files: also a chmod counts. With
`--workspace-mode copy`, contents and modes are compared.

Examples:
  forkpoint apply web --dry-run            what would be done
  forkpoint apply web
  forkpoint apply best-try -- src docs/api.md
  forkpoint apply web@2 --force            over what changed meanwhile
  forkpoint apply web --patch | git apply  by way of git

JSON: {\"source\", \"at\", \"done\", \"steps\": [{\"path\", \"step\": \"create|change|mode|delete|link|
make_directory|remove_directory\", \"len_bytes\"}], \"skipped\": [{\"path\", \"reason\"}], \"conflicts\":
[{\"path\", \"reason\"}], \"cut_short\"}; a path that is not UTF-8 is an array of its bytes";

pub(super) const PRUNE: &str = "\
Limits that are not given come from the configuration. Pinned snapshots stay, and so does the newest
of each sandbox when only its age speaks against it; what has expired goes in any case. Asks first on a
terminal.

Examples:
  forkpoint prune --dry-run
  forkpoint prune --max-age-days 14 --keep-last 5
  forkpoint prune --max-size 5G --force

JSON: {\"dry_run\", \"plan\": [{\"id\", \"name\", \"sandbox\", \"created\", \"own_bytes\", \"reason\"}], \"deleted\": [ID],
\"kept\": [ID], \"failed\": [{\"reference\", \"error\"}], \"unmet\": [TEXT], \"freed_bytes\"}";

pub(super) const WATCH: &str = "\
A snapshot by the clock has the trigger `periodic`, and is left out when nothing changed; one of a
container that ended by itself with an error `on_error`, that ended otherwise or was stopped
`run_end`. A trigger that the configuration does not enable takes nothing. Limits of the
configuration hold after each. An engine that goes away is told and tried again. Sandboxes of driver
`local` are watched by the clock alone. Ends when the sandbox is gone, and with Ctrl-C.

Examples:
  forkpoint watch docker:webapp --every 5m
  forkpoint watch docker:webapp                  only when it ends
  forkpoint watch web --every 1h --count 24

JSON, a line for each: {\"event\": \"taken\", \"snapshot\": SNAPSHOT}, {\"event\": \"skipped\",
\"reason\"}, {\"event\": \"failed|away\", \"error\"}, {\"event\": \"started|back|gone\"}";

pub(super) const IMPORT_LEGACY: &str = "\
Reads `metadata/*.json` and `index.json`. Each snapshot whose image the Docker engine still has can
be restored from then on; the image stays whose it was, and deleting the snapshot here leaves it. What
is damaged, unfinished or has lost its image is told one by one, and the exit code is then 1. Doing
it twice does no harm. Times without a zone are taken for UTC.

Examples:
  forkpoint import-legacy ./.snapshots --dry-run
  forkpoint import-legacy ./.snapshots
  forkpoint restore docker:webapp@latest --name again     after that

JSON: {\"dry_run\", \"snapshots\": [{\"legacy_id\", \"outcome\": \"imported|known|skipped|failed\", \"id\",
\"name\", \"reason\"}]}";

pub(super) const STATS: &str = "\
Examples:
  forkpoint stats
  forkpoint stats --json | jq .stored_bytes

JSON: {\"data_dir\", \"sandboxes\": {\"running\", \"paused\", \"stopped\", \"lost\", \"unknown\"}, \"snapshots\", \"pinned\",
\"own_bytes\", \"stored_bytes\", \"total_bytes\", \"oldest\", \"newest\", \"drivers\": [{\"driver\", \"snapshots\",
\"own_bytes\"}], \"open_operations\", \"waiting_chores\", \"disk_free_bytes\"}; own_bytes is the sum of what each
snapshot added, stored_bytes what is stored, total_bytes what it would be if nothing were shared";

pub(super) const VALIDATE: &str = "\
The exit code is 0 when a snapshot can be taken, 1 when something is in the way.

Examples:
  forkpoint validate web
  forkpoint validate web --full
  forkpoint validate docker:webapp       bind mounts, for example, are attached again, not copied

JSON: {\"sandbox\": SANDBOX, \"can\": true|false, \"findings\": [{\"severity\": \"note|left_out|blocks\",
\"message\"}]}";

pub(super) const CONFIG: &str = "\
Looked for in ./forkpoint.toml, in forkpoint/forkpoint.toml of the XDG configuration directory, and in
/etc/forkpoint/forkpoint.toml; each key is taken from the first that has it. A file must belong to you
or to root, and others must not be able to write it. From one in the working directory, which may have
come with somebody's project, only naming, max_agent_state and the limits in [defaults] are
taken: `--config ./forkpoint.toml` takes all of it, and no other file. The JSON of the
older snapshot manager can be named there too.

[defaults] are for `run` and `create`: copies that `restore` and `fork` make are what their source was.
Only `ttl` is for them too. What `before_snapshot` starts ends with it; what `after_restore` starts
goes on unless it fails.

[local] warm = 8 has the local driver keep so many sandboxes ready (at most 64), so that the next one
is there sooner: in a process that stays and makes one after the other, and as root. A single command
has no use for them, and makes none. share_memory = true has copies of a full snapshot share the memory
that they do not write to; docs/full-state.md tells for which programs that is. live_rotation = false
has full snapshots copy what running programs have written, and never give them another root instead.

Examples:
  forkpoint config show
  forkpoint config path
  forkpoint config show --json | jq '.settings[] | select(.origin)'

A configuration:
  data_dir = \"/srv/forkpoint\"

  [snapshots]
  triggers = [\"run_start\", \"run_end\", \"after_action\"]
  naming = \"{sandbox_name}_{trigger}_{timestamp}\"

  [retention]
  max_per_sandbox = 20
  max_size = \"5G\"
  max_age_days = 14

  [hooks]                                   # run by sh inside the sandbox
  before_snapshot = \"./save-all\"          # abort: if it fails, no snapshot is taken
  after_restore = \"./reconnect\"           # and what was restored is destroyed
  timeout = \"10s\"                         # at most 1h
  on_failure = \"abort\"                    # or warn

JSON: {\"settings\": [{\"key\", \"value\", \"origin\": FILE|null}]}; of path: {\"files\": [{\"path\", \"exists\"}]}";

pub(super) const TEMPLATE: &str = "\
`host` is always there. Layers that several images have are kept once.

Examples:
  forkpoint template add debian docker-daemon:debian:12
  forkpoint template add app ./app.tar            what `docker save`, `tar` or an OCI tool wrote
  forkpoint run --template debian -- cat /etc/os-release
  forkpoint template promote web@latest web-ready
  forkpoint template ls";

pub(super) const TEMPLATE_LS: &str = "\
Examples:
  forkpoint template ls
  forkpoint template ls --json | jq -r '.templates[].name'

JSON: {\"templates\": [{\"name\", \"kind\": \"host|image|snapshot|directory\", \"source\", \"digest\", \"layers\",
\"bytes\", \"env\", \"entrypoint\", \"cmd\", \"user\", \"workdir\", \"ports\", \"created\",
\"devices_left_out\"}], \"total_bytes\"}; total_bytes counts what several share once";

pub(super) const TEMPLATE_ADD: &str = "\
Everything is checked before the template is there: digests, sizes, names that lead outside. Devices
are left out, for a sandbox has its own /dev. Logins for registries are those of Docker.

Examples:
  forkpoint template add python registry:python:3.12-slim
  forkpoint template add app docker-daemon:app:latest
  forkpoint template add app oci:/srv/layout:v1
  forkpoint template add debian ./debian.tar.zst
  forkpoint template add root dir:/srv/rootfs     the directory itself, not a copy

JSON: the template, as in `forkpoint template ls --help`";

pub(super) const TEMPLATE_RM: &str = "\
A template that a sandbox or a snapshot uses stays, and is told by whom.

Examples:
  forkpoint template rm debian app

JSON: {\"removed\": [NAME], \"failed\": [{\"reference\", \"error\"}]}";

pub(super) const TEMPLATE_PROMOTE: &str = "\
Files are shared with the snapshot as long as it is there, so this costs little room. The
environment, directory and user of its sandbox stay.

Examples:
  forkpoint template promote web@latest web-ready
  forkpoint create --template web-ready

JSON: the template, as in `forkpoint template ls --help`";

pub(super) const COMPLETIONS: &str = "\
Examples:
  forkpoint completions bash > ~/.local/share/bash-completion/completions/forkpoint
  forkpoint completions zsh > ~/.zfunc/_forkpoint     with ~/.zfunc in $fpath
  forkpoint completions fish > ~/.config/fish/completions/forkpoint.fish";

pub(super) const MAN: &str = "\
Examples:
  forkpoint man | man -l -
  forkpoint man ~/.local/share/man/man1";
