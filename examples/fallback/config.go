package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/status"
)

// config is what every command needs of fallback's configuration.
type config struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	CNIDir     string `json:"cniDir"`
}

// choices is the rest of the configuration. DEL does not read it, so that it
// works when it has been broken since the ADD.
type choices struct {
	Choices       []netconf.Network          `json:"choices"`
	RuntimeConfig map[string]json.RawMessage `json:"runtimeConfig"`
}

// choices reads the choices, and gives each the name and the version that it
// lacks.
func (c *config) choices(stdin []byte) (choices, error) {
	all, err := netconf.Decode[choices](stdin)
	if err != nil {
		return choices{}, err
	}
	if len(all.Choices) == 0 {
		return choices{}, program.Invalid(c.Name, "choices", errors.New("there is none"))
	}
	for i, n := range all.Choices {
		key := fmt.Sprintf("choices[%d]", i)
		if n.IsZero() {
			return choices{}, program.Invalid(c.Name, key, errors.New("null, want an object"))
		}
		if all.Choices[i], err = program.Complete(n, c.Name, c.CNIVersion); err != nil {
			return choices{}, fmt.Errorf("network %q: %s: %w", c.Name, key, err)
		}
	}
	return all, nil
}

// failures says why each choice has failed, in their order.
type failures []error

// Error names each choice by its place.
func (f failures) Error() string {
	texts := make([]string, len(f))
	for i, err := range f {
		texts[i] = fmt.Sprintf("choices[%d]: %v", i, err)
	}
	return strings.Join(texts, "; ")
}

// Unwrap returns the errors of the choices.
func (f failures) Unwrap() []error { return f }

// CNICode reports 11, try again later, if any choice has that code, because it
// may work the next time. Else it is the code of the last choice: without that
// failure the others would not matter.
func (f failures) CNICode() uint {
	code := types.ErrUnknown
	for _, err := range f {
		if code = status.Code(err); code == types.ErrTryAgainLater {
			break
		}
	}
	return code
}
