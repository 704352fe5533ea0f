//go:build !linux

package ifname

import "errors"

func taken(string) ([]string, error) { return nil, errors.ErrUnsupported }
