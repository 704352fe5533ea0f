package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/scratch"
)

// stored says what is recorded.
func (w *world) stored() []string {
	var all []string
	for r, err := range w.m.store().List(w.t.Context()) {
		switch {
		case errors.Is(err, scratch.ErrCorrupt):
			all = append(all, fmt.Sprint(r.Key, " damaged"))
			continue
		case err != nil:
			all = append(all, err.Error())
			continue
		}
		var ls []piece
		for _, e := range r.Value.Delegates {
			ls = append(ls, pieceOf(e))
		}
		all = append(all, describeRecord(r.Key, r.State, ls))
	}
	slices.Sort(all)
	return all
}

func pieceOf(e entry) piece {
	l := piece{network: e.Network.Name(), ifname: e.IfName, half: e.Half}
	for i, p := range e.Network.Plugins() {
		l.plugins = append(l.plugins, p.Type())
		if slices.Contains(e.Gone, i) {
			l.gone = append(l.gone, p.Type())
		}
	}
	var result types100.Result
	if json.Unmarshal(e.Result, &result) == nil {
		l.result = result.Interfaces[0].Name
	}
	return l
}
