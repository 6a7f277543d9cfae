package explain

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"

	"github.com/nhc-gpu/nhc-gpu/checks"
)

// Entry describes a check as its source does.
type Entry struct {
	Names     []string
	About     string // wrapped
	Examples  []string
	Arguments []Argument `toml:"argument"`
	Findings  []Finding  `toml:"finding"`
}

// Argument is an option or a positional argument.
type Argument struct {
	Word    string // "-r RATE", "DRAM"
	Key     string // in a table of nhc.toml
	Unit    string // what it may be
	Default string
	About   string
}

// Finding is a finding as a test of the check has it. Severity has all severities of its code: "warn or fail".
type Finding struct {
	Code, Severity, Message string

	Remedy checks.Remedy
}

//go:embed reference
var referenceFiles embed.FS

// Reference returns the entries of all checks.
var Reference = sync.OnceValue(func() (all []Entry) {
	files, err := referenceFiles.ReadDir("reference")
	for _, f := range files {
		var page struct{ Check []Entry }
		if err == nil {
			_, err = toml.DecodeFS(referenceFiles, "reference/"+f.Name(), &page)
		}
		all = append(all, page.Check...)
	}
	if err != nil {
		panic("explain: reference: " + err.Error()) // TestReference
	}
	return all
})

func entryOf(name string) *Entry {
	all := Reference()
	if i := slices.IndexFunc(all, func(e Entry) bool { return slices.Contains(e.Names, name) }); i >= 0 {
		return &all[i]
	}
	return &Entry{Names: []string{name}}
}

func (e *Entry) finding(code string) *Finding {
	if i := slices.IndexFunc(e.Findings, func(f Finding) bool { return f.Code == code }); i >= 0 {
		return &e.Findings[i]
	}
	return &Finding{Code: code}
}

// effect returns what findings of these severities do to the node. fails is a check with a finding that fails.
func effect(severities map[string]bool, fails string) string {
	var list []string
	for s := checks.Skip; s <= checks.Fail; s++ {
		if severities[s.String()] {
			list = append(list, s.String())
		}
	}
	switch text := strings.Join(list, " or "); {
	case text == checks.Fail.String():
		return "fail: drains the node"
	case fails != "":
		return text + " (drains the node): explain " + fails + " says when"
	case text == checks.Warn.String():
		return "warn: logged, the node stays in service"
	case text == checks.Unknown.String():
		return "unknown: logged, the state of the node does not change"
	default:
		return text
	}
}

// text returns the message without the name of the check.
func (f *Finding) text() string {
	_, text, ok := strings.Cut(f.Message, ":  ")
	if !ok {
		return f.Message
	}
	return text
}

// checkOf returns the check that a text names: its name, also without "check_", or a line of
// nhc.conf with it.
func checkOf(text string) (checks.Info, bool) {
	if _, line, ok := strings.Cut(text, "||"); ok {
		text = line
	}
	name, _, _ := strings.Cut(strings.TrimSpace(text), " ")
	if info, ok := checks.Lookup(name); ok {
		return info, true
	}
	return checks.Lookup("check_" + text)
}

// width is where lines are wrapped, in characters.
const width = 78

// explainCheck returns the manual of a check.
func explainCheck(info checks.Info) string {
	var b strings.Builder
	e := entryOf(info.Name)
	fmt.Fprintf(&b, "%s: %s\n", info.Name, info.Summary)
	if others := slices.DeleteFunc(slices.Clone(e.Names), func(n string) bool { return n == info.Name }); len(others) > 0 {
		b.WriteString(wrapped("Described together with ", strings.Join(others, ", ")))
	}
	b.WriteString("\nUsage:\n" + wrapped("  "+info.Name+" ", usageWords(info.Usage)) + "\n")
	for line := range strings.Lines(e.About) {
		b.WriteString(strings.TrimRight("  "+line, " \n") + "\n")
	}
	if info.Active {
		b.WriteString("\n")
		b.WriteString(wrapped("  ", "This check loads the node: it runs only while no job runs, and for a limited time."))
	}
	e.writeArguments(&b)
	for i, name := range slices.Sorted(maps.Keys(info.Vars)) {
		if i == 0 {
			b.WriteString("\nSettings:\n")
		}
		fmt.Fprintf(&b, "  %s=%s\n", name, info.Vars[name])
	}
	e.writeFindings(&b, info)
	b.WriteString("\nExamples:\n")
	for _, line := range e.Examples {
		fmt.Fprintf(&b, "  %s\n", line)
	}
	fmt.Fprintf(&b, "  nhc-gpu check %s\n", info.Name)
	return b.String()
}

func (e *Entry) writeArguments(b *strings.Builder) {
	column := 0
	for _, a := range e.Arguments {
		column = max(column, len(a.Word))
	}
	for i, a := range e.Arguments {
		if i == 0 {
			b.WriteString("\nArguments:\n")
		}
		notes := slices.DeleteFunc([]string{a.Unit, before("default ", a.Default), before("in nhc.toml: ", a.Key)}, func(s string) bool { return s == "" })
		text := a.About
		if len(notes) > 0 {
			text = strings.TrimSpace(text + " (" + strings.Join(notes, "; ") + ")")
		}
		b.WriteString(wrapped(fmt.Sprintf("  %-*s  ", column, a.Word), text))
	}
}

func (e *Entry) writeFindings(b *strings.Builder, info checks.Info) {
	codes := slices.Sorted(maps.Keys(info.Advice()))
	for i := range e.Findings { // those that are made of data, gpu.xid.79
		if code := e.Findings[i].Code; !slices.Contains(codes, code) {
			codes = append(codes, code)
		}
	}
	for i, code := range codes {
		f := e.finding(code)
		if i == 0 {
			b.WriteString("\nFindings:\n")
		}
		notes := []string{code}
		if f.Severity != "" {
			notes = append(notes, f.Severity)
		}
		if f.Remedy != checks.NoRemedy {
			notes = append(notes, "remedy "+string(f.Remedy))
		}
		fmt.Fprintf(b, "  %s\n", strings.Join(notes, ", "))
		if f.Message != "" {
			b.WriteString(wrapped("      example  ", f.text()))
		}
		b.WriteString(wrapped("      do       ", checks.WhatToDo(code)))
	}
}

// explainMessage explains a message of a check: by the finding whose message it resembles.
func explainMessage(env *checks.Env, info checks.Info, text string) string {
	if f := resembling(entryOf(info.Name).Findings, text); f != nil {
		if answer := explainCode(env, f.Code); answer != "" {
			return answer
		}
	}
	if answer := explainFold(env, text); answer != "" && info.Class() == "gpu" {
		return answer
	}
	return checks.Explained("A message of "+info.Name, "means", info.Summary, "do", "nhc-gpu explain "+info.Name+" lists its findings; nhc-gpu check "+info.Name+" runs it.")
}

// resembling returns the finding whose message has most words in common with a text, nil if it
// has less than three fifths of them. Words with a digit or a slash name devices and values.
func resembling(list []Finding, text string) (best *Finding) {
	words := func(s string) []string {
		return slices.DeleteFunc(strings.Fields(s), func(w string) bool { return strings.ContainsAny(w, "0123456789/[]") || strings.HasPrefix(w, "check_") })
	}
	got, most := words(strings.TrimPrefix(text, "NHC: ")), 0
	for i := range list {
		want := words(list[i].Message)
		common := 0
		for _, w := range want {
			if slices.Contains(got, w) {
				common++
			}
		}
		if common > most && common*5 >= len(want)*3 {
			best, most = &list[i], common
		}
	}
	return best
}

// codesBelow returns the codes that begin with a part of a code: gpu.ecc.
func codesBelow(text string) []string {
	part := strings.TrimRight(text, ".*") + "."
	return slices.DeleteFunc(checks.Codes(), func(code string) bool { return !strings.HasPrefix(code, part) })
}

// codesOfReason returns the codes that fit a reason which sinfo -R has cut: NHC: gpu3 lost 00
func codesOfReason(text string) []string {
	rest, ok := strings.CutPrefix(text, "NHC: ")
	if !ok {
		return nil
	}
	_, behind, _ := strings.Cut(rest, " ") // the device
	fits := func(text, words string) bool {
		return len(text) > 3 && strings.HasPrefix(words, text) || text == words || strings.HasPrefix(text, words+" ") || strings.HasPrefix(text, words+":")
	}
	return slices.DeleteFunc(checks.Codes(), func(code string) bool {
		words := checks.Words(code)
		return !fits(rest, words) && !fits(behind, words)
	})
}

// mention returns the checks and the codes whose names or descriptions contain a text, "" for a
// text that is too short or too common to help.
func mention(text string) string {
	const least, most = 3, 20 // characters; rows
	text = strings.ToLower(text)
	if len(text) < least {
		return ""
	}
	contains := func(texts ...string) bool {
		return slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(strings.ToLower(t), text) })
	}
	var rows []string
	for _, name := range checks.Names() {
		info, _ := checks.Lookup(name)
		e := entryOf(name)
		if contains(name, info.Summary, e.About) {
			rows = append(rows, fmt.Sprintf("  %-30s %s\n", name, info.Summary))
		}
	}
	for _, code := range checks.Codes() {
		if contains(code, checks.Words(code), checks.WhatToDo(code)) {
			rows = append(rows, fmt.Sprintf("  %-30s %s\n", code, checks.Words(code)))
		}
	}
	if len(rows) == 0 || len(rows) > most {
		return ""
	}
	return fmt.Sprintf("%q occurs in: nhc-gpu explain NAME explains each\n", text) + strings.Join(rows, "")
}

func listCodes(title string, codes []string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: nhc-gpu explain CODE explains each\n", title)
	for _, code := range codes {
		fmt.Fprintf(&b, "  %-30s %s\n", code, checks.Words(code))
	}
	return b.String()
}

// usageWords keeps the blanks in brackets from being wrapped.
func usageWords(usage string) string {
	depth := 0
	return strings.Map(func(r rune) rune {
		switch r {
		case '[':
			depth++
		case ']':
			depth--
		case ' ':
			if depth > 0 {
				return unbroken
			}
		}
		return r
	}, usage)
}

// unbroken is a blank that wrapped keeps on its line.
const unbroken = '\x00'

// wrapped returns a text behind a label. The lines that follow are indented by its width.
func wrapped(label, text string) string {
	var b strings.Builder
	indent := min(len(label), 28)
	line := label
	for w := range strings.FieldsSeq(text) {
		if len(line) > indent && len(line)+len(w) > width {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = strings.Repeat(" ", indent)
		}
		line += w + " "
	}
	return strings.ReplaceAll(b.String()+strings.TrimRight(line, " ")+"\n", string(unbroken), " ")
}

func before(label, text string) string {
	if text == "" {
		return ""
	}
	return label + text
}
