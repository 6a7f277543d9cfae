package probe

import (
	"fmt"
	"testing"
)

func TestMinUID(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"# comment\nUID_MIN\t\t 1000\nUID_MIN 5\n": "1000 true",
		"  UID_MIN 500 # 3\r\n":                    "500 true",
		"UID_MIN 200":                              "200 true",
		"#UID_MIN 1000\nSYS_UID_MIN 1\nUID_MINI 3": "0 false",
		"UID_MIN\n":                                "0 false",
		"UID_MIN many\n":                           "0 false",
		"UID_MIN -1\n":                             "0 false",
		"UID_MIN 4294967296\n":                     "4294967295 false",
		"":                                         "0 false",
	} {
		uid, ok, err := tree(t, map[string]string{"etc/login.defs": text}).MinUID("/etc/login.defs")
		if got := fmt.Sprint(uid, ok); got != want || err != nil {
			t.Errorf("%q: %s, %v, want %s", text, got, err, want)
		}
	}
	if _, _, err := tree(t, nil).MinUID("/x"); message(err) != "read /x: no such file or directory" {
		t.Errorf("without the file: %v", err)
	}
}
