%% A handler of the logger for nodes of tests: what is logged is sent to the process called `ear'.
-module(test_log_forwarder).

-export([log/2]).

-spec log(logger:log_event(), logger:handler_config()) -> term().
log(Event, _Config) ->
    catch ear ! {heard, Event}.
