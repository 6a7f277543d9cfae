package xid

import (
	"github.com/nhc-gpu/nhc-gpu/checks"
	"github.com/nhc-gpu/nhc-gpu/checks/probe"
	"github.com/nhc-gpu/nhc-gpu/conf/spell"

	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"maps"
	"regexp"
	"slices"

	"github.com/BurntSushi/toml"
)

// xidRow is one row of xid.toml or sxid.toml.
type xidRow struct {
	Code      int               `toml:"code"`
	Name      string            `toml:"name"`
	Class     checks.XidClass   `toml:"class"`
	Says      string            `toml:"says"`
	Means     string            `toml:"means"`
	Remedy    checks.Remedy     `toml:"remedy"`
	Source    string            `toml:"source"`
	Why       string            `toml:"why"`
	State     string            `toml:"state"`  // remap, bank, sram, links or mig
	Repeat    *checks.Repeat    `toml:"repeat"` // a number of events that changes the class
	Again     []checks.XidClass `toml:"again"`  // classes if it returns after a reset or a reboot
	Same      string            `toml:"same"`   // "link": only events of the same link count for Again
	Clears    int               `toml:"clears"`
	Qualifies int               `toml:"qualifies"`
	Nonfatal  checks.XidClass   `toml:"nonfatal"` // of an SXid
	Marks     []string          `toml:"marks"`    // driver versions from which on it sets the recovery action for this error; nil: each that has one
	Victim    bool              `toml:"victim"`   // the application is the victim, not the cause
	Cure      string            `toml:"cure"`     // what to do, if its class does not say it

	unknown  bool   // not in the tables
	override string // the site's override in words, "" if there is none
}

//go:embed xid.toml
var xidTOML string

//go:embed sxid.toml
var sxidTOML string

// readRow parses the row of a code. Each row is one line, so that a node with one event does not parse
// six hundred rows.
func readRow(k checks.XidKey) (r xidRow, ok bool) {
	text := xidTOML
	if k.Switch {
		text = sxidTOML
	}
	_, rest, ok := strings.Cut(text, fmt.Sprintf("\n\t{code = %d,", k.Code))
	if !ok {
		return r, false
	}
	line, _, _ := strings.Cut(rest, "\n")
	var table struct {
		Row xidRow `toml:"row"`
	}
	if _, err := toml.Decode(fmt.Sprintf("row = {code = %d,%s", k.Code, strings.TrimSuffix(line, ",")), &table); err != nil {
		panic(fmt.Sprintf("checks: row of %s: %v", k, err))
	}
	if table.Row.Remedy == "none" {
		table.Row.Remedy = checks.NoRemedy
	}
	return table.Row, true
}

// xidPolicy is the classification of codes: the tables with a site's overrides.
type xidPolicy struct {
	file     string // with the site's overrides; "" if there are none
	rows     map[checks.XidKey]xidOverride
	severity map[checks.XidClass]checks.Severity
}

// xidOverride is one row of a site's file.
type xidOverride struct {
	Code  int             `toml:"code"`
	Class checks.XidClass `toml:"class"`
	Why   string          `toml:"why"`
}

// row returns the row of a code, with the site's override. An unknown code has class WATCH.
func (p *xidPolicy) row(k checks.XidKey) xidRow {
	r, ok := readRow(k)
	if !ok {
		r = xidRow{
			Code: k.Code, Name: "unknown", Class: checks.XidWatch, Says: "unknown", Means: "unknown to this version of nhc-gpu",
			Source: "none", unknown: true,
		}
	}
	o, ok := p.rows[k]
	if !ok {
		return r
	}
	r.override = fmt.Sprintf("%s: class %s instead of %s", p.file, o.Class, r.Class)
	if o.Why != "" {
		r.override += ", " + o.Why
	}
	// No rule changes a class that the site has set.
	r.Class, r.Nonfatal, r.Again, r.Repeat, r.State, r.Cure = o.Class, o.Class, nil, nil, "", ""
	if r.Remedy == checks.PowerCycle { // the site's class decides
		r.Remedy = checks.NoRemedy
	}
	r.Remedy, r.unknown = classRemedy(o.Class, r.Remedy), false
	return r
}

// classRemedy returns the remedy of an event with another class than that of its row.
func classRemedy(c checks.XidClass, of checks.Remedy) checks.Remedy {
	if of == checks.PowerCycle && c.Drains() && c != checks.XidHold {
		return of
	}
	switch c {
	case checks.XidReset:
		if of == checks.CheckCable || of == checks.CheckFabric {
			return of
		}
		return checks.ResetGPU
	case checks.XidReboot:
		return checks.RebootNode
	case checks.XidHold:
		return checks.ReseatOrRMA
	case checks.XidApp:
		return checks.RestartApp
	case checks.XidConfig:
		return checks.FixConfig
	case checks.XidDiag:
		return checks.NoRemedy
	}
	return of
}

// severityOf returns the severity of findings of a class.
func (p *xidPolicy) severityOf(c checks.XidClass) checks.Severity {
	if s, ok := p.severity[c]; ok {
		return s
	}
	switch {
	case c.Drains():
		return checks.Fail
	case c == checks.XidIgnore:
		return checks.OK
	}
	return checks.Warn
}

// xidPolicyFile is the file with a site's overrides, unless XID_POLICY names another.
const xidPolicyFile = "/etc/nhc/xid.toml"

// readXidPolicy reads the site's overrides. With an unusable file it returns the built-in policy and
// the error.
func readXidPolicy(env *checks.Env) (*xidPolicy, error) {
	path := env.Lookup("XID_POLICY")
	if path == "" {
		path = xidPolicyFile
	}
	env.At("read %s", path)
	data, err := probe.ReadTrusted(env.Host, path)
	if errors.Is(err, fs.ErrNotExist) && path == xidPolicyFile {
		return &xidPolicy{}, nil
	}
	if err != nil {
		return &xidPolicy{}, err
	}
	p, err := parseXidPolicy(path, string(data))
	if err != nil {
		first, _, more := strings.Cut(err.Error(), "\n")
		if more {
			first += " (nhc-gpu lint shows all errors)"
		}
		return &xidPolicy{}, errors.New(first)
	}
	return p, nil
}

// PolicyErrors returns all errors of a site's policy for Xids, each with its line.
func PolicyErrors(path string, text []byte) error {
	_, err := parseXidPolicy(path, string(text))
	return err
}

// xidPolicyText is the content of a site's policy file.
type xidPolicyText struct {
	Xid   []xidOverride `toml:"xid"`
	SXid  []xidOverride `toml:"sxid"`
	Class map[checks.XidClass]struct {
		Severity string `toml:"severity"`
	} `toml:"class"`
}

// parseXidPolicy parses a site's file: [[xid]] and [[sxid]] give a code another class, [class.WATCH]
// gives a class another severity.
func parseXidPolicy(path, text string) (*xidPolicy, error) {
	var file xidPolicyText
	site, err := checks.DecodeSite(path, text, &file)
	if err != nil {
		return nil, err
	}
	r := xidPolicyReader{SiteFile: site, p: &xidPolicy{file: path, rows: map[checks.XidKey]xidOverride{}, severity: map[checks.XidClass]checks.Severity{}}}
	r.addRows("xid", false, file.Xid)
	r.addRows("sxid", true, file.SXid)
	for _, class := range slices.Sorted(maps.Keys(file.Class)) {
		word := file.Class[class].Severity
		severity, ok := map[string]checks.Severity{"ok": checks.OK, "warn": checks.Warn, "fail": checks.Fail}[word]
		line := r.Line(`\s*\[\s*class\s*\.\s*"?`+regexp.QuoteMeta(string(class)), 0)
		switch {
		case class.Rank() < 0 || class.Rank() >= checks.XidDecode.Rank():
			r.Wrong(line, "class.%s: unknown class, want one of %s", class, listClasses())
		case !ok:
			r.Wrong(line, "class.%s: severity %q, want ok, warn or fail", class, word)
		default:
			r.p.severity[class] = severity
		}
	}
	if len(r.Errs) > 0 {
		return nil, errors.Join(r.Errs...)
	}
	return r.p, nil
}

// xidPolicyReader collects the errors of a policy.
type xidPolicyReader struct {
	*checks.SiteFile

	p *xidPolicy
}

// listClasses returns the names of the classes that a site can use.
func listClasses() string {
	var names []string
	for _, c := range checks.XidClasses[:checks.XidDecode.Rank()] {
		names = append(names, string(c))
	}
	return strings.Join(names, ", ")
}

// addRows adds [[xid]] or [[sxid]] tables.
func (r *xidPolicyReader) addRows(table string, isSwitch bool, list []xidOverride) {
	for i, o := range list {
		key, line := checks.XidKey{Switch: isSwitch, Code: o.Code}, r.Line(`\s*\[\[\s*`+table+`\s*\]\]`, i)
		_, twice := r.p.rows[key]
		switch {
		case twice:
			r.Wrong(line, "%s is given twice, want it once", key)
		case o.Class.Rank() < 0 || o.Class.Rank() >= checks.XidDecode.Rank():
			r.Wrong(line, "%s: class %q, want %s", key, o.Class, spell.OneOf(string(o.Class), strings.Split(listClasses(), ", ")))
		default:
			r.p.rows[key] = o
		}
	}
}
