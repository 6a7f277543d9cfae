package checks

import (
	"fmt"
	"maps"
	"testing"
)

func TestHWGM(t *testing.T) { testCheck(t, "check_hw_gm") }

var _ = table("check_hw_gm", func(string) []scenario {
	node := map[string]string{
		"proc/modules": "mlx5_core 1 0 - Live 0x0\ngm 40960 2 - Live 0x0\n",
		"proc/net/dev": "Inter-| Receive\n face |bytes\n    lo: 1 2\n  eth0:3 4\n myri0: 5 6\n",
	}
	with := func(file, content string) map[string]string {
		files := maps.Clone(node)
		files[file] = content
		return files
	}
	gone := func(code, dev, want, got string) []Finding {
		return []Finding{{
			Code: code, Severity: Fail, Device: Device{Kind: "netdev", Name: dev}, Want: want, Got: got,
			Message: fmt.Sprintf("check_hw_gm:  GM device %s not active, either driver is not loaded, or interface not created.", dev)}}
	}
	return []scenario{
		{name: "there", files: node, words: of("myri0"), table: map[string]any{"dev": "myri0"}},
		{name: "glob", files: node, words: of("myri*", "more")},

		{name: "no interface", files: node, words: of("myri1"), want: gone("hw.gm.missing", "myri1", "myri1", "lo eth0 myri0")},
		{name: "no name", files: node, want: gone("hw.gm.missing", "", "", "lo eth0 myri0")},
		{name: "no driver", files: with("proc/modules", "gma500 1 0\nmlx5_core 1 0 gm, Live 0x0\n"), words: of("myri0"),
			want: gone("hw.gm.driver", "myri0", "module gm", "not loaded")},
		{name: "one of eight is gone", words: of("myri7"),
			files: with("proc/net/dev", "myri0:1\nmyri1:1\nmyri2:1\nmyri3:1\nmyri4:1\nmyri5:1\nmyri6:1\n"),
			want:  gone("hw.gm.missing", "myri7", "myri7", "myri0 myri1 myri2 myri3 myri4 myri5 myri6")},
		{name: "kernel without modules", files: map[string]string{"proc/net/dev": "myri0: 1\n"}, words: of("myri0"),
			want: gone("hw.gm.driver", "myri0", "module gm", "not loaded")},

		{name: "no interface list", broken: true, files: map[string]string{"proc/modules": "gm 1 0\n"}, words: of("myri0"),
			want: unreadable(fmt.Errorf("read /proc/net/dev: no such file or directory"))},
		{name: "unreadable modules", broken: true, files: map[string]string{"proc/modules/": "", "proc/net/dev": "myri0: 1\n"}, words: of("myri0"),
			want: unreadable(fmt.Errorf("read /proc/modules: is a directory"))},
		{name: "garbage", broken: true, files: map[string]string{"proc/modules": "\x00\xff\n\n:", "proc/net/dev": "\xff:\n::\n"}, words: of("myri0"),
			want: gone("hw.gm.missing", "myri0", "myri0", "\xff ")},
	}
})
