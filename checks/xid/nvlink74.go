package xid

import (
	"github.com/nhc-gpu/nhc-gpu/checks"

	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/BurntSushi/toml"
)

//go:embed nvlink74.toml
var nvlink74TOML string

// nvlink74Row is one row of nvlink74.toml.
type nvlink74Row struct {
	Register int             `toml:"register"`
	Bits     []int           `toml:"bits"`
	Class    checks.XidClass `toml:"class"`
	Remedy   checks.Remedy   `toml:"remedy"`
	Says     string          `toml:"says"`
}

var nvlink74Table = sync.OnceValue(func() []nvlink74Row {
	var file struct {
		Source string        `toml:"source"`
		Bits   []nvlink74Row `toml:"bits"`
	}
	if _, err := toml.Decode(nvlink74TOML, &file); err != nil {
		panic(fmt.Sprintf("checks: nvlink74.toml: %v", err))
	}
	return file.Bits
})

// xidNVLink is the Xid with seven registers of an NVLink at the end of its line, before Blackwell.
const xidNVLink = 74

// decodeNVLink74 decodes the registers of an Xid 74. class is "" if NVIDIA documents none of the bits.
func decodeNVLink74(text string) (class checks.XidClass, remedy checks.Remedy, what string) {
	unexplained := map[int]uint32{}
	for i, r := range parseRegisters(text) {
		unexplained[i+1] = r
	}
	whole := false // the row of 74 decides about one of the bits
	var says []string
	for _, row := range nvlink74Table() {
		hit := false
		for _, bit := range row.Bits {
			hit = hit || unexplained[row.Register]&(1<<bit) != 0
			unexplained[row.Register] &^= 1 << bit
		}
		if !hit {
			continue
		}
		if !slices.Contains(says, row.Says) {
			says = append(says, row.Says)
		}
		switch {
		case row.Class == "":
			whole = true
			if remedy == "" || remedy == checks.ResetGPU {
				remedy = row.Remedy
			}
		case class == "" || row.Class.Rank() > class.Rank():
			class = row.Class
		}
	}
	for _, register := range []int{1, 3, 4, 5} { // the other registers have no meaning
		whole = whole || unexplained[register] != 0
	}
	if whole {
		class = ""
	}
	return class, remedy, strings.Join(says, "; ")
}

// parseRegisters returns the numbers in the last parentheses of a line.
func parseRegisters(text string) (registers []uint32) {
	_, text, _ = strings.Cut(text[max(0, strings.LastIndex(text, "(")):], "(")
	text, _, whole := strings.Cut(text, ")")
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(strings.TrimSpace(word), 0, 32)
		if err != nil || !whole {
			return nil
		}
		registers = append(registers, uint32(n))
	}
	return registers
}

// fitRemedy returns the remedy of a finding: none that costs a job for an error that is only to be watched, though its
// row asks for more.
func (r *xidRow) fitRemedy(class checks.XidClass, severity checks.Severity, remedy checks.Remedy) checks.Remedy {
	lowered := class == checks.XidWatch && (r.Class != checks.XidWatch || r.override != "")
	if lowered && severity == checks.Warn && remedy.Rank() > 1 {
		return checks.NoRemedy
	}
	return remedy
}

// chooseRemedy returns the remedy of an event of the class, by its text.
func (r *xidRow) chooseRemedy(class checks.XidClass, text string) checks.Remedy {
	if r.Code == xidNVLink && class == checks.XidReset && r.override == "" {
		if _, remedy, _ := decodeNVLink74(text); remedy != checks.NoRemedy {
			return remedy
		}
	}
	if class == r.Class {
		return r.Remedy
	}
	return classRemedy(class, r.Remedy)
}
