%% @private
%% What the logger is told of the quorum locks, in the domain `[canal_lock, quorum]'. Whatever goes wrong between nodes
%% is said here and raised nowhere: the caller who gives a lock back can do nothing about a voter that does not answer.
-module(canal_lock_quorum_reports).

-include_lib("kernel/include/logger.hrl").

-export([connection/2, silent/2, answers/1, stranger/1, bad_frame/2, unknown_message/2]).
-export([not_stored/2, no_fences/2, agent_died/1]).
-export([format/1]).

%% So much is shown of a message.
-define(MAX_CHARACTERS, 200).

%% A member has come or gone.
-spec connection(node(), up | down) -> ok.
connection(Node, up) ->
    ?LOG_NOTICE(#{what => up, node => Node}, meta());
connection(Node, down) ->
    ?LOG_WARNING(#{what => down, node => Node}, meta()).

%% A member is connected and does not answer; so many unlocks wait for a quorum.
-spec silent(node(), non_neg_integer()) -> ok.
silent(Node, Pending) ->
    ?LOG_WARNING(#{what => silent, node => Node, pending_unlocks => Pending}, meta()).

-spec answers(node()) -> ok.
answers(Node) ->
    ?LOG_NOTICE(#{what => answers, node => Node}, meta()).

%% A node that is no member, or has other members or rules than this one.
-spec stranger(node()) -> ok.
stranger(Node) ->
    ?LOG_ERROR(#{what => stranger, node => Node}, meta()).

-spec bad_frame(node(), Why :: binary()) -> ok.
bad_frame(Node, Why) ->
    ?LOG_ERROR(#{what => bad_frame, node => Node, why => Why}, meta()).

%% The mark of the fences; it is tried again.
-spec not_stored(Path :: binary(), Why :: term()) -> ok.
not_stored(Path, Why) ->
    ?LOG_ERROR(#{what => not_stored, path => Path, why => Why}, meta()).

%% The file is there and cannot be read. The voter goes on as if it were not there.
-spec no_fences(Path :: binary(), Why :: binary()) -> ok.
no_fences(Path, Why) ->
    ?LOG_ERROR(#{what => no_fences, path => Path, why => Why}, meta()).

%% It held so many locks, which are lost.
-spec agent_died(non_neg_integer()) -> ok.
agent_died(Lost) ->
    ?LOG_ERROR(#{what => agent_died, lost => Lost}, meta()).

-spec unknown_message(agent | voter, term()) -> ok.
unknown_message(Process, Message) ->
    ?LOG_ERROR(#{what => unknown_message, process => Process, message => Message}, meta()).

meta() ->
    #{domain => [canal_lock, quorum], report_cb => fun ?MODULE:format/1}.

-spec format(map()) -> {io:format(), [term()]}.
format(#{what := up, node := Node}) ->
    {"canal_lock_quorum: connected with ~tp", [Node]};
format(#{what := down, node := Node}) ->
    {"canal_lock_quorum: the connection with ~tp is lost", [Node]};
format(#{what := silent, node := Node, pending_unlocks := Pending}) ->
    {"canal_lock_quorum: ~tp does not answer; ~b unlocks wait for a quorum", [Node, Pending]};
format(#{what := answers, node := Node}) ->
    {"canal_lock_quorum: ~tp answers again", [Node]};
format(#{what := stranger, node := Node}) ->
    {"canal_lock_quorum: ~tp has other members or rules than this node, and is not listened to", [Node]};
format(#{what := bad_frame, node := Node, why := Why}) ->
    {"canal_lock_quorum: ~tp sent what is no frame: ~ts", [Node, Why]};
format(#{what := not_stored, path := Path, why := Why}) ->
    {"canal_lock_quorum: fences could not be stored in ~ts: ~ts. It is tried again", [Path, why(Why)]};
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
