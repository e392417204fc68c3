%% `canal_lock' shows none of what lock managers are known to get wrong, and the cases can tell: the original's design
%% shows what does not depend on chance.
-module(canal_lock_conformance_tests).

-include_lib("eunit/include/eunit.hrl").

conformance_test_() ->
    canal_lock_stage:quietly(
        canal_lock_stage:tests(
            without_manager,
            [
                {Promise ++ ": not " ++ Title, fun() -> ?assertNot(is_shown(Defect, canal_lock)) end}
             || Defect = #{promise := Promise, title := Title} <- canal_lock_conformance:defects()
            ] ++
                [
                    {"By the original: " ++ Title, fun() -> ?assert(is_shown(Defect, canal_lock_ets)) end}
                 || Defect = #{kind := certain, title := Title} <- canal_lock_conformance:defects()
                ]
        )
    ).

is_shown(Defect, Implementation) ->
    canal_lock_conformance:is_shown(canal_lock_conformance:shows(Defect, Implementation)).
