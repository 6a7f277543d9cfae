package lbnl

import (
	"fmt"
	"maps"
	"testing"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/checktest"
)

func TestHWGM(t *testing.T) { checktest.Run(t, "check_hw_gm") }

var _ = checktest.Table("check_hw_gm", func(string) []checktest.Scenario {
	node := map[string]string{
		"proc/modules": "mlx5_core 1 0 - Live 0x0\ngm 40960 2 - Live 0x0\n",
		"proc/net/dev": "Inter-| Receive\n face |bytes\n    lo: 1 2\n  eth0:3 4\n myri0: 5 6\n",
	}
	with := func(file, content string) map[string]string {
		files := maps.Clone(node)
		files[file] = content
		return files
	}
	gone := func(code, dev, want, got string) []checks.Finding {
		return []checks.Finding{{
			Code: code, Severity: checks.Fail, Device: checks.Device{Kind: "netdev", Name: dev}, Want: want, Got: got,
			Message: fmt.Sprintf("check_hw_gm:  GM device %s not active, either driver is not loaded, or interface not created.", dev)}}
	}
	return []checktest.Scenario{
		{Name: "there", Files: node, Words: checktest.Of("myri0"), Table: map[string]any{"dev": "myri0"}},
		{Name: "glob", Files: node, Words: checktest.Of("myri*", "more")},

		{Name: "no interface", Files: node, Words: checktest.Of("myri1"), Want: gone("hw.gm.missing", "myri1", "myri1", "lo eth0 myri0")},
		{Name: "no name", Files: node, Want: gone("hw.gm.missing", "", "", "lo eth0 myri0")},
		{Name: "no driver", Files: with("proc/modules", "gma500 1 0\nmlx5_core 1 0 gm, Live 0x0\n"), Words: checktest.Of("myri0"),
			Want: gone("hw.gm.driver", "myri0", "module gm", "not loaded")},
		{Name: "one of eight is gone", Words: checktest.Of("myri7"),
			Files: with("proc/net/dev", "myri0:1\nmyri1:1\nmyri2:1\nmyri3:1\nmyri4:1\nmyri5:1\nmyri6:1\n"),
			Want:  gone("hw.gm.missing", "myri7", "myri7", "myri0 myri1 myri2 myri3 myri4 myri5 myri6")},
		{Name: "kernel without modules", Files: map[string]string{"proc/net/dev": "myri0: 1\n"}, Words: checktest.Of("myri0"),
			Want: gone("hw.gm.driver", "myri0", "module gm", "not loaded")},

		{Name: "no interface list", Broken: true, Files: map[string]string{"proc/modules": "gm 1 0\n"}, Words: checktest.Of("myri0"),
			Want: checks.Unreadable(fmt.Errorf("read /proc/net/dev: no such file or directory"))},
		{Name: "unreadable modules", Broken: true, Files: map[string]string{"proc/modules/": "", "proc/net/dev": "myri0: 1\n"}, Words: checktest.Of("myri0"),
			Want: checks.Unreadable(fmt.Errorf("read /proc/modules: is a directory"))},
		{Name: "garbage", Broken: true, Files: map[string]string{"proc/modules": "\x00\xff\n\n:", "proc/net/dev": "\xff:\n::\n"}, Words: checktest.Of("myri0"),
			Want: gone("hw.gm.missing", "myri0", "myri0", "\xff ")},
	}
})
