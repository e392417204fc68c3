%% @private
%% Log reports of the quorum locks, with the metadata `canal_lock => quorum' and without a domain, as
%% canal_lock_reports. Failures between nodes are logged and not raised, because a caller that unlocks can do nothing
%% about a voter that does not answer.
-module(canal_lock_quorum_reports).

-include_lib("kernel/include/logger.hrl").

-export([report/2, format/1]).

%% About this many characters of a message are shown.
-define(MAX_CHARACTERS, 200).

%% Logs a report. `format/1' has all kinds of reports, and the details of each.
-spec report(What :: atom(), Details :: #{atom() => term()}) -> ok.
report(What, Details) ->
    ?LOG(level(What), Details#{what => What}, #{canal_lock => quorum, report_cb => fun ?MODULE:format/1}).

level(up) -> notice;
level(answers) -> notice;
level(stopped) -> notice;
level(started) -> notice;
level(down) -> warning;
level(never_connected) -> warning;
level(silent) -> warning;
level(view) -> notice;
level(members_differ) -> notice;
level(lost_member) -> warning;
level(refused) -> warning;
level(not_allowed) -> warning;
level(old_vm) -> warning;
level(singleton_stopped) -> warning;
level(_) -> error.

-spec format(map()) -> {io:format(), [term()]}.
format(Report) ->
    {Format, Values} = text(Report),
    {"canal_lock_quorum: " ++ Format, Values}.

text(#{what := up, node := Node}) ->
    {"connected to member ~tp", [Node]};
text(#{what := down, node := Node}) ->
    {"lost the connection to member ~tp; this node reconnects to it", [Node]};
text(#{what := stopped, node := Node}) ->
    {"canal_lock_quorum was stopped on member ~tp", [Node]};
text(#{what := started, node := Node}) ->
    {"canal_lock_quorum runs again on member ~tp", [Node]};
text(#{what := never_connected, node := Node, after_ms := After_ms}) ->
    {"member ~tp has not been connected within ~b ms since the start of this node. Check that the node runs, its name, "
        "the cookie and the network; this node goes on trying, at the latest after 30 s", [Node, After_ms]};
text(#{what := silent, node := Node, pending_unlocks := Pending}) ->
    {"the voter of member ~tp does not answer; ~b unlocks are pending. Check that canal_lock_quorum runs there, "
        "and that the node is not suspended or overloaded", [Node, Pending]};
text(#{what := answers, node := Node}) ->
    {"the voter of member ~tp answers again", [Node]};
text(#{what := view, number := Number, members := Members}) ->
    {"the members are now ~0tp (view ~b)", [Members, Number]};
text(#{what := members_differ, given := Given, number := Number, now := Members}) ->
    {"the option members is ~0tp, and the members are ~0tp (view ~b in the state file of this node). The option is not "
        "used: change_members/1 changes the members", [Given, Members, Number]};
text(#{what := renamed, node := Node, name := Before}) ->
    {"this node was ~tp at the start of canal_lock_quorum, and is now ~tp. It gets no locks. Start canal_lock_quorum "
        "after the node has got its name", [Before, Node]};
text(#{what := other_cluster, node := Node}) ->
    {"node ~tp is a member or client of another cluster of quorum locks; this node ignores it. If it should be one of "
        "this cluster, stop it, delete its state file, and start it again", [Node]};
text(#{what := other_list, node := Node}) ->
    {"node ~tp starts with other members or another lease_ms than this node, so they form no cluster. Give both the "
        "same members and lease_ms", [Node]};
text(#{what := refused, node := Node, suppressed := Suppressed}) ->
    {"member ~tp does not let this node lock. ~tsName this node in its option clients", [
        Node, more(Suppressed, "batches were refused")
    ]};
text(#{what := not_allowed, node := Node, suppressed := Suppressed}) ->
    {"node ~tp is no member, and the option clients does not let it lock here. ~tsName it in this option, or make it a "
        "member", [Node, more(Suppressed, "of its batches were dropped")]};
text(#{what := bad_frame, node := Node, why := Reason, suppressed := Suppressed}) ->
    {"node ~tp sent a malformed frame: ~ts. ~tsRun the same version of canal_lock on all nodes", [
        Node, Reason, more(Suppressed, "have arrived")
    ]};
text(#{what := not_stored, path := Path, why := Reason, suppressed := Suppressed}) ->
    {"cannot write the state file ~ts: ~ts. ~tsCheck the disk; the write is repeated every second", [
        Path, reason(Reason), more(Suppressed, "writes have failed")
    ]};
text(#{what := store_late, path := Path, after_ms := After_ms, suppressed := Suppressed}) ->
    {"a write of ~ts has not returned for ~b ms. ~tsCheck the disk; until the write returns, this node gives writers "
        "only the fences that it has stored, and a voter that starts does not vote", [
        Path, After_ms, more(Suppressed, "have been late")
    ]};
%% The voter starts as if there were no file.
text(#{what := file_lost, path := Path, why := Reason}) ->
    {"the state file ~ts was lost: ~ts. It is replaced, and this node returns as a new member", [Path, Reason]};
text(#{what := lost_member, path := Path}) ->
    {"the file ~ts is new, or not the last one of this node, which was a member before. This node asks the other "
        "members to take it as a new one. Do not restore the file from a backup", [Path]};
text(#{what := agent_died, lost := Lost}) ->
    {"the agent of this node crashed; ~b locks were lost, and their holders are notified", [Lost]};
text(#{what := singleton_stopped, name := Name}) ->
    {"the singleton ~ts was stopped on this node, because its lock was at risk or lost. It starts where the lock is "
        "granted next", [short(Name)]};
text(#{what := old_vm, version := Version, needed := Needed}) ->
    {"this VM, erts ~ts, can lose the wakeup of a process; then requests of this node wait until their timeouts. Run "
        "erts ~ts or later", [Version, Needed]};
text(#{what := event_failed, event := Event, class := Class, reason := Reason, stacktrace := Stacktrace}) ->
    {"telemetry failed to emit the event ~0tp: ~ts: ~ts in ~ts. Later failures are not logged", [
        Event, Class, short(Reason), short(Stacktrace)
    ]};
text(#{what := unknown_message, process := Process, message := Message}) ->
    {"the ~ts ignored an unknown message: ~ts", [Process, short(Message)]}.

%% How often it has happened without a report.
more(0, _) -> "";
more(Suppressed, What) -> io_lib:format("~b more ~ts since the last report. ", [Suppressed, What]).

reason(Reason) when is_binary(Reason) -> Reason;
reason(Reason) -> short(Reason).

short(Term) ->
    canal_lock_text:short(Term, ?MAX_CHARACTERS).
