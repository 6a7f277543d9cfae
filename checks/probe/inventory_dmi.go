package probe

import (
	"context"
	"fmt"
	"time"
)

// PartDMI is the part of the inventory that dmidecode tells. Only root may ask.
const PartDMI Part = "dmi"

// DMILine is a line of a DMI table, as a check of DMI data sees it.
type DMILine struct {
	Handle string `json:"handle"` // as dmidecode writes it: 0x1100
	Type   string `json:"type"`   // number of the table's type
	Text   string `json:"text"`   // behind the names of its sections
}

// inventoryDMILimit bounds dmidecode, which reads the firmware's memory.
const inventoryDMILimit = 4 * time.Second

func (h *Host) inventoryDMI() ([]DMILine, error) {
	ctx, cancel := context.WithTimeout(context.Background(), inventoryDMILimit)
	defer cancel()
	dmi, err := h.DMI(ctx)
	if err == nil {
		err = dmi.Missing
	}
	if err != nil {
		return nil, fmt.Errorf("run dmidecode: %w", reason(err))
	}
	var lines []DMILine
	for _, r := range dmi.Records {
		for _, text := range r.Data {
			lines = append(lines, DMILine{Handle: fmt.Sprintf("0x%04X", r.Handle), Type: r.Type, Text: text})
		}
	}
	return lines, nil
}
