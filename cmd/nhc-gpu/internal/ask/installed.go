package ask

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/session"
	"github.com/nhc-gpu/nhc-gpu/cmd/nhc-gpu/internal/console"
)

// ExitNotActed is the exit status if the configuration does not act on a fault.
const ExitNotActed = 2

// Installed prints what the configuration of this node does about faults: a table of those that it
// does not act on, or of all.
func Installed(faults []session.KnownFault, words []string, asJSON, all bool) (exit int, err error) {
	r, plans, err := openSite(words)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	list := session.Cover(faults, plans, r.Config)
	ignored := 0
	for i := range list {
		if !list[i].Acted() {
			ignored, exit = ignored+1, ExitNotActed
		}
	}
	if asJSON {
		e := json.NewEncoder(os.Stdout)
		e.SetEscapeHTML(false)
		return exit, e.Encode(map[string]any{"node": r.Name, "not_acted": ignored, "faults": list})
	}
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 4, 2, ' ', 0)
	if ignored > 0 || all {
		fmt.Fprintln(w, "ACTION\tFAULT\tRUN\tLINE\tDECIDED BY")
	}
	for _, row := range foldCovered(list, all) {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", row.Action, row.Code, orDash(row.Context), orDash(row.Line), row.By)
	}
	if err := w.Flush(); err != nil {
		return exit, err
	}
	if b.Len() > 0 {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "node %s: %s\n", r.Name, summary(list, ignored))
	_, err = fmt.Fprint(console.Screen, b.String())
	return exit, err
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// foldCovered returns the rows of the table: all, or those of the faults without an action. There,
// faults that differ only in the code share a row.
func foldCovered(list []session.Covered, all bool) (rows []session.Covered) {
	if all {
		return list
	}
	more := map[session.Covered]int{}
	at := map[session.Covered]int{}
	for _, c := range list {
		if c.Acted() {
			continue
		}
		same := c
		same.Code = ""
		if _, ok := at[same]; ok {
			more[same]++
			continue
		}
		at[same] = len(rows)
		rows = append(rows, c)
	}
	for same, i := range at {
		if n := more[same]; n > 0 {
			rows[i].Code += fmt.Sprintf(" and %d more", n)
		}
	}
	return rows
}

// summary counts the faults by what the configuration does.
func summary(list []session.Covered, ignored int) string {
	fails := 0
	for i := range list {
		if list[i].Severity == checks.Fail {
			fails++
		}
	}
	if ignored == 0 {
		return fmt.Sprintf("the configuration acts on each of %s", console.Counted(fails, "fault"))
	}
	return fmt.Sprintf("the configuration does not act on %d of %s; -v prints all", ignored, console.Counted(fails, "fault"))
}
