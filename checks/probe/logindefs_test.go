package probe

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// The answers of LBNL NHC itself; TestMaxSystemUIDOfLibrary reads them, too.
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
		uid, err := NewHost(tree(t, map[string]string{"etc/login.defs": text})).MaxSystemUID("/etc/login.defs")
		if want == "error" != (err != nil) || err == nil && strconv.FormatInt(uid, 10) != want {
			t.Errorf("MaxSystemUID of %q = %d, %v, want %s", text, uid, err, want)
		}
	}
	// LBNL NHC does not read a last line without a newline.
	if uid, err := NewHost(tree(t, map[string]string{"l": "UID_MIN 200"})).MaxSystemUID("/l"); uid != 199 || err != nil {
		t.Errorf("without a newline: %d, %v, want 199", uid, err)
	}
}

func TestMaxSystemUIDErrors(t *testing.T) {
	t.Parallel()
	_, err := NewHost(tree(t, map[string]string{"l": "UID_MIN 0999\n"})).MaxSystemUID("/l")
	if want := "read /l: UID_MIN 0999 begins with 0, and is no octal number: want a decimal number without the 0"; message(err) != want {
		t.Errorf("UID_MIN 0999: %v, want %s", err, want)
	}
	if _, err := NewHost(tree(t, nil)).MaxSystemUID("/x"); message(err) != "read /x: no such file or directory" {
		t.Errorf("without the file: %v", err)
	}
}
