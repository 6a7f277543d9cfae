package ask

import (
	"errors"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/options"
)

// The lines of other tasks of an array, and of other components, are not those of the job.
func TestRunsOn(t *testing.T) {
	t.Parallel()
	for out, want := range map[string]string{
		"7|alice|gpu[01-03]\n":                 "alice gpu[01-03]",
		"8|alice|gpu01\n7|alice|gpu02\n":       "alice gpu02", // an array
		"9|alice|\n8|alice|gpu01\n7|alice|\n":  " ",           // it waits
		"7|alice|\n7|alice|gpu02\n":            "alice gpu02",
		"17|alice|gpu01\n":                     " ",
		"7|al ice|gpu01\n":                     " ",
		"7|alice|gpu01|gpu02\n":                " ",
		"slurm_load_jobs error: no such job\n": " ",
		"":                                     " ",
	} {
		if user, list := runsOn(out, "7"); user+" "+list != want {
			t.Errorf("%q: %q on %q, want %q", out, user, list, want)
		}
	}
}

// An ID that is not a number is refused at once, with the way to the number.
func TestCheckID(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"1234_7", "1234+1", "1234.0", "x", ""} {
		var wrong options.Wrong
		if err := checkID(id); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "scontrol show job") {
			t.Errorf("%q: %v", id, err)
		}
	}
	if err := checkID("1234"); err != nil {
		t.Error(err)
	}
}
