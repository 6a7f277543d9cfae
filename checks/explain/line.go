package explain

import (
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/monitor"

	_ "embed"
)

// otherLine is a line of the kernel's log that is in no table of the checks and of the monitor.
type otherLine struct {
	Has, Means, Check, Do, Source string

	Example string `toml:"line"`
}

//go:embed lines.toml
var linesText string

// otherLines are the lines of lines.toml.
var otherLines = sync.OnceValue(func() []otherLine {
	var file struct{ Line []otherLine }
	if _, err := toml.Decode(linesText, &file); err != nil {
		panic("explain: lines.toml: " + err.Error()) // TestExplainLines
	}
	return file.Line
})

// explainOther explains a line of the kernel's log that no check judges, "" for any other text.
func explainOther(text string) string {
	const title = "A line of the kernel's log"
	if l, ok := monitor.Pasted(text); ok {
		classes, why := l.Wakes()
		return checks.Explained(title, "means", l.Means, "monitor", "it makes the checks of "+strings.Join(classes, ", ")+" that only read: "+why, "do", l.Do, "source", l.Source)
	}
	i := slices.IndexFunc(otherLines(), func(l otherLine) bool { return strings.Contains(text, l.Has) })
	if i < 0 {
		return ""
	}
	l := otherLines()[i]
	return checks.Explained(title, "means", l.Means, "the checks", l.Check, "do", l.Do, "source", l.Source)
}
