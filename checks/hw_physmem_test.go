package checks

import "fmt"

func init() {
	node := map[string]string{"proc/meminfo": "MemTotal:       263856120 kB\nMemFree:        200000000 kB\n"}
	tooLittle := func(want string) []Finding {
		return []Finding{{
			Code: "hw.memory.small", Severity: Fail, Want: want + " kB", Got: "263856120 kB",
			Message: fmt.Sprintf("check_hw_physmem:  Actual RAM size (263856120 kB) less than minimum allowed (%s kB).", want)}}
	}
	tooMuch := func(want string) []Finding {
		return []Finding{{
			Code: "hw.memory.large", Severity: Fail, Want: want + " kB", Got: "263856120 kB",
			Message: fmt.Sprintf("check_hw_physmem:  Actual RAM size (263856120 kB) greater than maximum allowed (%s kB).", want)}}
	}
	malformed := func(what, word, want string) []Finding {
		return []Finding{{
			Code: "config.value", Severity: Fail, Remedy: FixConfig, Want: want, Got: word,
			Message: fmt.Sprintf("check_hw_physmem:  Invalid %s %q; want %s.", what, word, want)}}
	}
	testCheck("check_hw_physmem",
		scenario{name: "exact", files: node, words: of("263856120", "263856120"),
			table: map[string]any{"min": int64(263856120), "max": "263856120"}},
		scenario{name: "units", files: node, words: of("1gb", "1T")},
		scenario{name: "unit of the file", files: node, words: of("263856120k", "263856120kB")},
		scenario{name: "fraction", files: node, words: of("0.245T", "251.7G")},
		scenario{name: "percent", files: node, words: of("269133242", "258579000", "2%"),
			table: map[string]any{"min": "269133242", "max": "258579000", "fudge": "2%"}},
		scenario{name: "percent with a fraction", files: node, words: of("265175400", "1T", "0.5%")},
		scenario{name: "fudge in kB", files: node, words: of("263856220", "263856220", "100")},
		scenario{name: "fudge with a unit", files: node, words: of("262807544", "262807544", "1GB")},
		scenario{name: "no minimum", files: node, words: of("", "263856115", "5")},
		scenario{name: "negative minimum", files: node, words: of("-5", "1T", "", "more")},

		scenario{name: "too little", files: node, words: of("263856121", "1T"), want: tooLittle("263856121")},
		scenario{name: "too little in G", files: node, words: of("300G", "400G"), want: tooLittle("314572800")},
		scenario{name: "too little by less than a kB", files: node, words: of("263856120.5k", "1T"), want: tooLittle("263856120.5")},
		scenario{name: "beyond the percentage", files: node, words: of("269133243", "2T", "2%"), want: tooLittle("269133243")},
		scenario{name: "too much", files: node, words: of("1", "263856119"), want: tooMuch("263856119")},
		scenario{name: "too much in G", files: node, words: of("1M", "1G"), want: tooMuch("1048576")},
		scenario{name: "no maximum counts as 0", files: node, words: of("1"), want: tooMuch("")},
		scenario{name: "nothing wanted", files: node, want: tooMuch("")},
		scenario{name: "beyond the fudge", files: node, words: of("1", "263856019", "100"), want: tooMuch("263856019")},

		scenario{name: "word", files: node, words: of("abc", "def"), want: malformed("minimum", "abc", wantSize)},
		scenario{name: "percentage", files: node, words: of("1", "10%"), want: malformed("maximum", "10%", wantSize)},
		scenario{name: "two dots", files: node, words: of("1", "2T", "2.5.5%"),
			want: malformed("fudge factor", "2.5.5%", wantSize+", or a percentage")},
		scenario{name: "two units", files: node, words: of("1", "2T", "1.5GG"),
			want: malformed("fudge factor", "1.5GG", wantSize+", or a percentage")},

		scenario{name: "no file", broken: true, words: of("1", "2"), want: []Finding{{
			Code: "probe.unreadable", Severity: Unknown, Message: "read /proc/meminfo: no such file or directory"}}},
		scenario{name: "garbage", broken: true, files: map[string]string{"proc/meminfo": "MemTotal: \xff kB\n"}, words: of("1", "2"),
			want: []Finding{{Code: "probe.unreadable", Severity: Unknown, Message: "read /proc/meminfo: no MemTotal line"}}},
	)
}
