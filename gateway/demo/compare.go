package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// compare compares two files, or two folders with all in them: names, modes and
// content. It returns how many files there are and their size, or an error that
// says where the first difference is.
func compare(a, b string) (files int, size int64, err error) {
	namesA, err := tree(a)
	if err != nil {
		return 0, 0, err
	}
	namesB, err := tree(b)
	if err != nil {
		return 0, 0, err
	}
	if !slices.Equal(namesA, namesB) {
		return 0, 0, fmt.Errorf("%s has %q, %s has %q", a, namesA, b, namesB)
	}
	for _, name := range namesA {
		n, err := compareFile(filepath.Join(a, name), filepath.Join(b, name))
		if err != nil {
			return 0, 0, err
		}
		if n >= 0 {
			files++
			size += n
		}
	}
	return files, size, nil
}

// tree returns the paths of all that is in root, relative to it and sorted.
func tree(root string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		names = append(names, name)
		return err
	})
	slices.Sort(names)
	return names, err
}

// compareFile compares two files and returns their size, or -1 for folders.
func compareFile(a, b string) (int64, error) {
	infoA, errA := os.Lstat(a)
	infoB, errB := os.Lstat(b)
	if err := errors.Join(errA, errB); err != nil {
		return 0, err
	}
	if infoA.Mode().Type() != infoB.Mode().Type() {
		return 0, fmt.Errorf("%s is %v, %s is %v", a, infoA.Mode(), b, infoB.Mode())
	}
	if infoA.IsDir() {
		return -1, nil
	}
	dataA, errA := os.ReadFile(a)
	dataB, errB := os.ReadFile(b)
	if err := errors.Join(errA, errB); err != nil {
		return 0, err
	}
	if !bytes.Equal(dataA, dataB) {
		return 0, fmt.Errorf("%s and %s differ", a, b)
	}
	return int64(len(dataA)), nil
}
