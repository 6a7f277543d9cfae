package health

import (
	"strings"
	"testing"
)

// FuzzResult reads the data of an earlier run, or of another user, as the result of a
// detached run: one line, of a status without blanks and a message.
func FuzzResult(f *testing.F) {
	f.Add("1 check_x:  failed\n0\n")
	f.Add("\\\n \\ \\")
	f.Fuzz(func(t *testing.T, data string) {
		got := parseResult(data)
		if strings.ContainsAny(got.status, " \t\n") || strings.Contains(got.message, "\n") || len(got.status)+len(got.message) > len(data) {
			t.Errorf("%q: %+v", data, got)
		}
	})
}
