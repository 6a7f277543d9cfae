package conf

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCalls(t *testing.T) {
	t.Parallel()
	const script = `#!/bin/bash
# nhcmain_detach
check_a() {
    if one; then two "$(three x)" | four; fi
    X=1 five && "six" || $seven
    echo nhcmain_help 'nhcmain_run_checks'
    for i in a b; do { eight; }; done
}
`
	want := []Call{{"one", 4}, {"two", 4}, {"three", 4}, {"four", 4}, {"five", 5}, {"echo", 6}, {"eight", 7}}
	if diff := cmp.Diff(want, Calls([]byte(script))); diff != "" {
		t.Errorf("Calls (-want +got):\n%s", diff)
	}
	if calls := Calls([]byte("one\nif true; then\n")); calls != nil {
		t.Errorf("a script that is not whole: %v", calls)
	}
}
