//! The last part of each help text: examples, and what a script must know.

pub(super) const MAIN: &str = "\
Examples:
  forkpoint demo                          see what it does, in a second
  forkpoint run -- sh -c 'echo hello'     run a command in a new sandbox
  forkpoint create --name web             a sandbox to come back to
  forkpoint snapshot web -m 'it works'    keep this moment
  forkpoint rollback web                  go back to it
  forkpoint fork web -n 8 --name try      eight copies, try-1 to try-8

A SANDBOX is an id, an unambiguous prefix of one, or a name. A SNAPSHOT is an id, a prefix, a name,
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
\"detail\", \"way_out\"}]}";

pub(super) const RUN: &str = "\
The exit code is the command's own. Signals go on to the command. The sandbox stays afterwards,
unless --rm is given.

Examples:
  forkpoint run                                   a shell in a new sandbox
  forkpoint run --rm -- make test                 try something, keep nothing
  forkpoint run --name web --env PORT=80 -- ./setup.sh
  forkpoint run --memory 512M --cpus 1.5 --timeout 60s -- python3 job.py
  echo 2+2 | forkpoint run --rm -i -- bc";

pub(super) const CREATE: &str = "\
Examples:
  forkpoint create --name web
  forkpoint create --template dir:/srv/rootfs --label team=a
  box=$(forkpoint create --network host --workdir /srv)

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
\"template\", \"head\", \"labels\", \"created\", \"adopted\", \"workdir\", \"user\", \"network\",
\"memory_bytes\", \"cpu_millis\", \"pids\"}]}, with --usage also \"usage\": {\"disk_bytes\", \"memory_bytes\",
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

JSON: the snapshot, as in `forkpoint list --help`; {\"skipped\": REASON} when its trigger is off";

pub(super) const RESTORE: &str = "\
Examples:
  forkpoint restore before --name web-again
  forkpoint restore web@2                the second newest snapshot of web

JSON: the sandbox, as in `forkpoint ps --help`";

pub(super) const ROLLBACK: &str = "\
Id, name and labels stay. What was done since the snapshot is lost; take one first to keep it.

Examples:
  forkpoint rollback web
  forkpoint rollback web before
  forkpoint rollback web web@2

JSON: {\"sandbox\": SANDBOX, \"to\": SNAPSHOT}";

pub(super) const FORK: &str = "\
A sandbox is snapshotted first. A copy that fails is undone and reported alone; the exit code is
then 1, and the ids of the others are printed all the same.

Examples:
  forkpoint fork web
  forkpoint fork web -n 40 --name try
  forkpoint fork before -n 2 --env SEED=1

JSON: {\"snapshot\", \"sandboxes\": [{\"id\", \"name\"}], \"failed\": [{\"id\", \"name\", \"error\"}]}";

pub(super) const LIST: &str = "\
Examples:
  forkpoint list
  forkpoint list --sandbox web --trigger after_action
  forkpoint list --label team=a --limit 5 --json

JSON: {\"snapshots\": [{\"id\", \"name\", \"sandbox\", \"sandbox_name\", \"parent\", \"driver\", \"template\",
\"kind\", \"trigger\", \"description\", \"context\", \"run_id\", \"step\", \"labels\", \"agent_state_bytes\",
\"own_bytes\", \"total_bytes\", \"file_count\", \"created\", \"expires\", \"pinned\", \"last_restored\",
\"restore_count\", \"durable\"}], \"more\": true|false}";

pub(super) const SHOW: &str = "\
Examples:
  forkpoint show before
  forkpoint show web@latest --json

JSON: the snapshot, as in `forkpoint list --help`, with \"ancestors\": [ID], nearest first, and
\"children\": [ID]";

pub(super) const LOG: &str = "\
Examples:
  forkpoint log
  forkpoint log web

JSON: {\"snapshots\": [{\"id\", \"name\", \"parent\", \"depth\", \"sandbox\", \"sandbox_name\", \"kind\",
\"trigger\", \"description\", \"own_bytes\", \"created\", \"deleted\", \"here\": [SANDBOX ID]}]}, each parent
before its children";

pub(super) const DELETE: &str = "\
Asks first on a terminal. An id that is gone already is a success. With several, each has its own
fate, and the exit code is that of the worst.

Examples:
  forkpoint delete before
  forkpoint delete --force $(forkpoint list -q --sandbox web)

JSON: {\"deleted\": [ID], \"failed\": [{\"reference\", \"error\"}]}";
