%% @private
%% What the logger is told of the quorum locks, in the domain `[canal_lock, quorum]'. Whatever goes wrong between nodes
%% is said here and raised nowhere: the caller who gives a lock back can do nothing about a voter that does not answer.
-module(canal_lock_quorum_reports).

-include_lib("kernel/include/logger.hrl").

-export([report/2, format/1]).

%% So much is shown of a message.
-define(MAX_CHARACTERS, 200).

%% `format/1' has what there is to report, and the details of each.
-spec report(What :: atom(), Details :: #{atom() => term()}) -> ok.
report(What, Details) ->
    ?LOG(level(What), Details#{what => What}, #{domain => [canal_lock, quorum], report_cb => fun ?MODULE:format/1}).

level(up) -> notice;
level(answers) -> notice;
level(down) -> warning;
level(silent) -> warning;
level(_) -> error.

-spec format(map()) -> {io:format(), [term()]}.
format(#{what := up, node := Node}) ->
    {"canal_lock_quorum: connected with ~tp", [Node]};
format(#{what := down, node := Node}) ->
    {"canal_lock_quorum: the connection with ~tp is lost", [Node]};
format(#{what := silent, node := Node, pending_unlocks := Pending}) ->
    {"canal_lock_quorum: ~tp does not answer; ~b unlocks wait for a quorum", [Node, Pending]};
format(#{what := answers, node := Node}) ->
    {"canal_lock_quorum: ~tp answers again", [Node]};
%% A node that is no member, or has other members or rules than this one.
format(#{what := not_a_member, node := Node}) ->
    {"canal_lock_quorum: ~tp has other members or rules than this node, and is not listened to", [Node]};
format(#{what := bad_frame, node := Node, why := Why}) ->
    {"canal_lock_quorum: ~tp sent what is no frame: ~ts", [Node, Why]};
format(#{what := not_stored, path := Path, why := Why}) ->
    {"canal_lock_quorum: fences could not be stored in ~ts: ~ts. It is tried again", [Path, why(Why)]};
%% The file is there and cannot be read. The voter goes on as if it were not there.
format(#{what := no_fences, path := Path, why := Why}) ->
    {"canal_lock_quorum: fences could not be read from ~ts: ~ts. They are learnt from the other members", [Path, Why]};
format(#{what := agent_died, lost := Lost}) ->
    {"canal_lock_quorum: the agent of this node had died; ~b locks were lost with it", [Lost]};
format(#{what := unknown_message, process := Process, message := Message}) ->
    {"canal_lock_quorum: the ~ts got an unknown message: ~ts", [Process, short(Message)]}.

why(Why) when is_binary(Why) -> Why;
why(Why) -> short(Why).

short(Term) ->
    canal_lock_text:short(Term, ?MAX_CHARACTERS).
