package probe

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

// These are the results of LBNL NHC itself, which TestMaxSystemUIDOfLibrary reads, too.
func TestMaxSystemUID(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("testdata/max_sys_uid.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		want, quoted, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		if want == "#" {
			continue
		}
		text, err := strconv.Unquote(quoted)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		uid, err := MaxSystemUID(NewHost(probetest.Tree(t, map[string]string{"etc/login.defs": text})), "/etc/login.defs")
		if want == "error" != (err != nil) || err == nil && strconv.FormatInt(uid, 10) != want {
			t.Errorf("MaxSystemUID of %q = %d, %v, want %s", text, uid, err, want)
		}
	}
	// LBNL NHC does not read a last line without a newline.
	if uid, err := MaxSystemUID(NewHost(probetest.Tree(t, map[string]string{"l": "UID_MIN 200"})), "/l"); uid != 199 || err != nil {
		t.Errorf("without a newline: %d, %v, want 199", uid, err)
	}
}

func TestMaxSystemUIDErrors(t *testing.T) {
	t.Parallel()
	_, err := MaxSystemUID(NewHost(probetest.Tree(t, map[string]string{"l": "UID_MIN 0999\n"})), "/l")
	if want := "read /l: UID_MIN 0999 begins with 0, but is not an octal number: want a decimal number without the 0"; probetest.Message(err) != want {
		t.Errorf("UID_MIN 0999: %v, want %s", err, want)
	}
	if _, err := MaxSystemUID(NewHost(probetest.Tree(t, nil)), "/x"); probetest.Message(err) != "read /x: no such file or directory" {
		t.Errorf("without the file: %v", err)
	}
}
