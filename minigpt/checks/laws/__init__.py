"""What attention and the parts around it are: laws, which a right program obeys in any layout, order or naming.

In: what `reading` found in a program. Out: the laws that it breaks, each with the line, what was found, what was
expected and how to mend it. What is exact about a kind is asked of the kind itself, in `attention`.
"""
