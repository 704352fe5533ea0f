package delegatetest

import (
	"context"
	"encoding/json"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
)

// Result returns a plugin that succeeds. Its ADD prints r in the version of the
// configuration. When r is nil, ADD prints prevResult, or an empty result if there
// is none. VERSION prints all versions of the specification.
func Result(r types.Result) Fake {
	return func(_ context.Context, c Invocation) ([]byte, error) {
		switch c.Command {
		case "ADD":
			return answer(c, r)
		case "VERSION":
			return json.Marshal(version.All)
		}
		return nil, nil
	}
}

func answer(c Invocation, r types.Result) ([]byte, error) {
	var conf struct {
		CNIVersion string          `json:"cniVersion"`
		PrevResult json.RawMessage `json:"prevResult"`
	}
	if err := json.Unmarshal(c.Stdin, &conf); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "delegatetest: "+err.Error(), "")
	}
	if conf.CNIVersion == "" {
		conf.CNIVersion = "0.1.0" // as the specification has it; libcni leaves it empty
	}
	if r == nil {
		if len(conf.PrevResult) > 0 && string(conf.PrevResult) != "null" {
			return conf.PrevResult, nil
		}
		return json.Marshal(map[string]string{"cniVersion": conf.CNIVersion})
	}
	converted, err := r.GetAsVersion(conf.CNIVersion)
	if err != nil {
		return nil, types.NewError(types.ErrIncompatibleCNIVersion, "delegatetest: "+err.Error(), "")
	}
	return json.Marshal(converted)
}
