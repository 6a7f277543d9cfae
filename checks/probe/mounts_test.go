package probe

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nhc-gpu/nhc-gpu/checks/probe/probetest"
)

func TestMounts(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"proc/mounts": `sysfs /sys sysfs rw,nosuid 0 0
nfs1:/export/a\040b /m/a\040b\134c nfs4 rw,vers=4.2 0 0

alone
two /m/two
`}))
	want := []Mount{
		{Source: "sysfs", Point: "/sys", Type: "sysfs", Options: "rw,nosuid"},
		{Source: "nfs1:/export/a040b", Point: `/m/a b\c`, Type: "nfs4", Options: "rw,vers=4.2"},
		{Source: "two", Point: "/m/two"},
	}
	got, err := Mounts(h)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Mounts (-want +got):\n%s", diff)
	}
}

func TestMountsAreReadOnce(t *testing.T) {
	t.Parallel()
	h := NewHost(probetest.Tree(t, map[string]string{"etc/": ""}))
	if _, err := Mounts(h); probetest.Message(err) != "read /proc/mounts: no such file or directory" {
		t.Fatalf("Mounts: %v", err)
	}
	Remember(h, "mounts", []Mount{{Point: "/x"}}, nil)
	if got, err := Mounts(h); err != nil || len(got) != 1 {
		t.Fatalf("Mounts from memory: %v, %v", got, err)
	}
	if _, err := MountsOf(h, Space); err == nil {
		t.Fatal("MountsOf: from the memory of others")
	}
	ForgetMounts(h)
	if _, err := Mounts(h); err == nil {
		t.Fatal("Mounts after ForgetMounts: still from memory")
	}
}

func TestUnescape(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		`plain`:      "plain",
		`a\040b`:     "a b",
		`\011\012`:   "\t\n",
		`\134040`:    `\040`,
		`end\04`:     `end\04`,
		`\x`:         `\x`,
		`\400`:       `\400`, // more than a byte
		`\089`:       `\089`,
		"\\303\\251": "é",
	} {
		if got := unescape([]byte(in)); got != want {
			t.Errorf("unescape(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzMounts(f *testing.F) {
	f.Add([]byte("a /b\\040c d e 0 0\n"))
	f.Add([]byte("\\\\\\ \\1 \\12 \\777\n\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, m := range parseMounts(data) {
			if m.Point == "" {
				t.Errorf("empty mount point: %q", m)
			}
		}
	})
}

// FuzzMountsThereAndBack checks that a line in the kernel's format decodes to the original mount
// point, whatever bytes the names have, and the other fields as the shell reads them.
func FuzzMountsThereAndBack(f *testing.F) {
	f.Add("nfs1:/a b", "/m/a\\040b", "nfs4", "rw,x=\t")
	f.Add("none", "/m/\u00a0\r\v\u0085", "tmpfs", "\xff\xa0")
	f.Fuzz(func(t *testing.T, source, point, kind, options string) {
		if source == "" || point == "" || kind == "" || options == "" {
			return
		}
		mangle := strings.NewReplacer(" ", `\040`, "\t", `\011`, "\n", `\012`, `\`, `\134`, "#", `\043`)
		line := "x /x x x 0 0\n" + mangle.Replace(source) + " " + mangle.Replace(point) + " " + mangle.Replace(kind) + " " + mangle.Replace(options) + " 0 0\n"
		got := parseMounts([]byte(line))
		read := func(s string) string { return strings.ReplaceAll(mangle.Replace(s), `\`, "") }
		want := []Mount{{"x", "/x", "x", "x"}, {read(source), point, read(kind), read(options)}}
		if !slices.Equal(got, want) {
			t.Errorf("%q: %q, want %q", line, got, want)
		}
	})
}
