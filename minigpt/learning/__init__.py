"""For people who learn: lessons (predict, then see), exercises, a class, and the playground for one's own runs.

In: a learner, or a folder of learners' files. Out: a page, a notebook, marks. Imports: all other parts.
"""
